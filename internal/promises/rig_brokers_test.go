package promises

import (
	"context"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/lab/brokers/private"
	"github.com/postrider/postrider/internal/testserver"
)

// server is a real broker that a test may break.
type server struct {
	*brokers.Broker
	// sink has a client of its own; the server need not run yet.
	sink func(t *testing.T) broker.Sink
	// through is a sink whose connections a proxy can break.
	through func(t *testing.T) (broker.Sink, *faultproxy.Proxy)
	tooBig  string // the code of a message above the limit
	slow    bool   // starts slowly and expires sessions slowly
	kills   int    // as many as its restarts take a few seconds
	blames  bool   // a message that two faults met has used an attempt if others were accepted in between
}

// faults returns the classes that the results of consecutive faults may have.
func (s *server) faults() []broker.Class {
	if s.blames {
		return []broker.Class{broker.ClassOutage, broker.ClassUnknown, broker.ClassFailed}
	}
	return []broker.Class{broker.ClassOutage, broker.ClassUnknown}
}

// described closes the clients of a description with the test.
func described(t *testing.T, b *brokers.Broker, err error) *brokers.Broker {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// make makes an empty topic for messages of at most maxBytes.
func (s *server) make(t *testing.T, topic string, maxBytes int) {
	t.Helper()
	if err := s.Make(t.Context(), brokers.Topic{Name: topic, Partitions: 4, MaxBytes: maxBytes}); err != nil {
		t.Fatal(err)
	}
}

// read returns the topic's payloads, those of one key in the broker's order.
func (s *server) read(t *testing.T, topic string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	arrived, err := s.Payloads(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	return arrived
}

// lastArrival returns the time at which the broker stored its newest message.
func (s *server) lastArrival(t *testing.T, topic string) (last time.Time) {
	t.Helper()
	err := s.Read(t.Context(), topic, func(r brokers.Record) {
		if r.Time.After(last) {
			last = r.Time
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return last
}

// under sets a limit of the broker until undo is called.
func under(t *testing.T, limit func(context.Context, string) (func(context.Context) error, error), topic string) (undo func()) {
	t.Helper()
	end, err := limit(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// do fails the test if an act on a server fails.
func do(tb testing.TB, act func() error) {
	tb.Helper()
	if err := act(); err != nil {
		tb.Fatal(err)
	}
}

func proxied(t *testing.T, addr string) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// opened closes a sink at the end of the test.
func opened[S interface {
	broker.Sink
	Close()
}](t *testing.T, sink S, err error,
) broker.Sink {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	return sink
}

// at sets how to open sinks of the broker's URL, directly and through a proxy.
func (s *server) at(open func(t *testing.T, url string) broker.Sink) *server {
	s.sink = func(t *testing.T) broker.Sink { return open(t, s.URL) }
	s.through = func(t *testing.T) (broker.Sink, *faultproxy.Proxy) {
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		p := proxied(t, u.Host)
		u.Host = p.Addr()
		return open(t, u.String()), p
	}
	return s
}

func startNATS(t *testing.T) *server {
	t.Helper()
	return natsServer(t, testserver.StartNATS(t))
}

// natsServer switches off the broker's deduplication: a message sent twice counts twice.
func natsServer(t *testing.T, s *testserver.NATS) *server {
	t.Helper()
	b, err := private.NATS(s)
	n := &server{Broker: described(t, b, err), tooBig: "10054", kills: 3}
	return n.at(func(t *testing.T, url string) broker.Sink {
		sink, err := natsbroker.Open(url+"?dedup=off", nil)
		return opened(t, sink, err)
	})
}

func startKafka(t *testing.T) *server {
	t.Helper()
	return kafkaServer(t, testserver.StartKafka(t))
}

func kafkaServer(t *testing.T, s *testserver.Kafka) *server {
	t.Helper()
	b, err := private.Kafka(s)
	return &server{
		Broker: described(t, b, err), tooBig: "MESSAGE_TOO_LARGE", kills: 1, slow: true,
		sink: func(t *testing.T) broker.Sink {
			sink, err := kafkabroker.Open("kafka://"+s.Addr, nil)
			return opened(t, sink, err)
		},
		through: func(t *testing.T) (broker.Sink, *faultproxy.Proxy) {
			p := proxied(t, s.Addr)
			dial := func(ctx context.Context, network, _ string) (net.Conn, error) { // whatever the broker advertises
				return new(net.Dialer).DialContext(ctx, network, p.Addr())
			}
			c, err := kgo.NewClient(kgo.SeedBrokers(s.Addr), kgo.FetchMaxWait(50*time.Millisecond), kgo.Dialer(dial))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			sink, err := kafkabroker.NewSink(c, nil)
			if err != nil {
				t.Fatal(err)
			}
			return sink, p
		},
	}
}

func startRedis(t *testing.T) *server {
	t.Helper()
	return redisServer(t, testserver.StartRedis(t, testserver.Redis7))
}

func redisServer(t *testing.T, s *testserver.Redis) *server {
	t.Helper()
	r := &server{Broker: described(t, private.Redis(s), nil), tooBig: "TOO_LARGE", kills: 3}
	return r.at(func(t *testing.T, url string) broker.Sink {
		sink, err := redisbroker.Open(url+"/?create=off&max-message-bytes=20000", nil)
		return opened(t, sink, err)
	})
}

func startRabbitMQ(t *testing.T) *server {
	t.Helper()
	return rabbitServer(t, testserver.StartRabbitMQ(t, "4.0"))
}

func rabbitServer(t *testing.T, s *testserver.RabbitMQ) *server {
	t.Helper()
	r := &server{Broker: described(t, private.RabbitMQ(s), nil), tooBig: "MESSAGE_TOO_LARGE", kills: 1, slow: true}
	return r.at(func(t *testing.T, url string) broker.Sink {
		sink, err := rabbitbroker.Open(url+"?max-message-bytes=20000", nil)
		return opened(t, sink, err)
	})
}
