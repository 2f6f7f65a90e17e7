package natsbroker_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

// TestConformance runs the suite on the installed server. On machines without it,
// and in the matrix, it runs on the server that is linked into the test.
//
// Promises: L, O
func TestConformance(t *testing.T) {
	t.Run("server", func(t *testing.T) {
		url := testserver.SharedNATS(t).URL
		brokertest.Run(t, func(t *testing.T) *brokertest.Env { return env(t, url) })
	})
	if _, err := testserver.NATSBinary(); err == nil && os.Getenv("POSTRIDER_MATRIX") != "1" {
		return
	}
	t.Run("embedded", func(t *testing.T) {
		url := embedded(t)
		brokertest.Run(t, func(t *testing.T) *brokertest.Env {
			e := env(t, url)
			e.Server = "NATS in process"
			return e
		})
	})
}

func embedded(t *testing.T) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the embedded server is not ready")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s.ClientURL()
}

func connect(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, natsbroker.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// env gives a case a stream of its own that keeps duplicates. The sink
// connects through a proxy.
func env(t *testing.T, url string) *brokertest.Env {
	t.Helper()
	return envWith(t, url, natsbroker.SinkOptions{NoDedup: true, Timeout: 2 * time.Second})
}

func envWith(t *testing.T, url string, opts natsbroker.SinkOptions) *brokertest.Env {
	t.Helper()
	proxy, through := proxied(t, url)
	direct := connect(t, url)
	js, err := jetstream.New(direct)
	if err != nil {
		t.Fatal(err)
	}
	name := "s" + rand.Text()
	topic, beside := name+".orders", name+".audit.orders"
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{topic, beside}})
	if err != nil {
		t.Fatal(err)
	}
	client := connect(t, through)
	sink, err := natsbroker.NewSink(client, &opts)
	if err != nil {
		t.Fatal(err)
	}
	second, err := natsbroker.NewSink(connect(t, url), &opts)
	if err != nil {
		t.Fatal(err)
	}
	source := func(nc *nats.Conn) (*natsbroker.Source, error) {
		return natsbroker.NewSource(nc, &natsbroker.SourceOptions{Stream: name, Group: "c", AckWait: 3 * time.Second})
	}
	return &brokertest.Env{
		Server: "NATS " + testserver.NATSVersion,
		Sink:   sink, Topic: topic, Beside: beside, Missing: "nowhere" + name, TooLarge: 2 << 20, Largest: 1<<20 - 500,
		Log: func(ctx context.Context) ([]postrider.Message, error) { return log(ctx, stream) },
		LogOf: func(ctx context.Context, topic string) ([]postrider.Message, error) {
			s, err := js.Stream(ctx, streamOf(topic))
			if err != nil {
				return nil, err
			}
			return log(ctx, s)
		},
		Without: map[string]string{
			"sink/dedup":   "the sink is told to keep what is sent again: TestDedup is about the window",
			"sink/revoked": "rights need a server with users: TestWhoWeAre has one",
		},
		Operator: operator(js),
		Routed: func(_ context.Context, route envelope.Router) (broker.Sink, error) {
			return natsbroker.NewSink(direct, &natsbroker.SinkOptions{Route: route, NoDedup: opts.NoDedup})
		},
		Flaky: func(context.Context) (broker.Source, brokertest.Faults, func(), error) {
			proxy, through := proxied(t, url)
			s, err := source(connect(t, through))
			if err != nil {
				return nil, nil, nil, err
			}
			return s, proxy, s.Close, nil
		},
		Foreign: func(ctx context.Context, payload []byte) error {
			_, err := js.Publish(ctx, topic, payload)
			return err
		},
		Faults: proxy, Second: second, Stop: client.Close,
		Source: func(context.Context) (broker.Source, func(), error) {
			s, err := source(direct)
			if err != nil {
				return nil, nil, err
			}
			return s, s.Close, nil
		},
		Mortal: func(context.Context) (broker.Source, func(), error) {
			proxy, through := proxied(t, url)
			s, err := source(connect(t, through))
			if err != nil {
				return nil, nil, err
			}
			return s, func() { proxy.Cut(0) }, nil
		},
	}
}

func streamOf(topic string) string { name, _, _ := strings.Cut(topic, "."); return name }

// operator makes a stream for each topic.
func operator(js jetstream.JetStream) brokertest.Operator {
	config := func(topic string) jetstream.StreamConfig {
		return jetstream.StreamConfig{Name: streamOf(topic), Subjects: []string{topic}}
	}
	makeStream := func(ctx context.Context, c jetstream.StreamConfig) error {
		_, err := js.CreateStream(ctx, c)
		return err
	}
	fresh := func() string { return "o" + rand.Text() + ".orders" }
	return brokertest.Operator{
		Make: func(ctx context.Context) (string, error) {
			topic := fresh()
			return topic, makeStream(ctx, config(topic))
		},
		MakeSmall: func(ctx context.Context) (string, int, error) {
			topic, limit := fresh(), 16<<10
			c := config(topic)
			c.MaxMsgSize = int32(limit)
			return topic, limit, makeStream(ctx, c)
		},
		Delete: func(ctx context.Context, topic string) error { return js.DeleteStream(ctx, streamOf(topic)) },
		Again:  func(ctx context.Context, topic string) error { return makeStream(ctx, config(topic)) },
		Fill: func(ctx context.Context, topic string) (func(context.Context) error, error) {
			full := config(topic)
			full.Discard, full.MaxMsgs = jetstream.DiscardNew, 1
			if err := makeFull(ctx, js, full); err != nil {
				return nil, err
			}
			return func(ctx context.Context) error {
				_, err := js.UpdateStream(ctx, config(topic))
				return err
			}, nil
		},
	}
}

// makeFull leaves one message in a stream that takes one.
func makeFull(ctx context.Context, js jetstream.JetStream, full jetstream.StreamConfig) error {
	s, err := js.Stream(ctx, full.Name)
	if err != nil {
		return err
	}
	if err := s.Purge(ctx, jetstream.WithPurgeKeep(1)); err != nil {
		return err
	}
	_, err = js.UpdateStream(ctx, full)
	return err
}

// TestDedup: the stream drops duplicates.
//
// Promises: L
func TestDedup(t *testing.T) {
	url := testserver.SharedNATS(t).URL
	brokertest.RunSome(t, []string{"sink/dedup", "sink/pipes"}, func(t *testing.T) *brokertest.Env {
		e := envWith(t, url, natsbroker.SinkOptions{})
		e.Server += ", deduplication on"
		delete(e.Without, "sink/dedup")
		return e
	})
}

// proxied returns a proxy and the URL that goes through it.
func proxied(t *testing.T, url string) (*faultproxy.Proxy, string) {
	t.Helper()
	proxy, err := faultproxy.New(strings.TrimPrefix(url, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	return proxy, "nats://" + proxy.Addr()
}

// log reads a stream up to its present end.
func log(ctx context.Context, stream jetstream.Stream) ([]postrider.Message, error) {
	info, err := stream.Info(ctx)
	if err != nil || info.State.Msgs == 0 {
		return nil, err
	}
	reader, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return nil, err
	}
	var out []postrider.Message
	for uint64(len(out)) < info.State.Msgs {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%d of %d messages: %w", len(out), info.State.Msgs, err)
		}
		batch, err := reader.Fetch(min(1000, int(info.State.Msgs)-len(out)), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return nil, err
		}
		for raw := range batch.Messages() {
			var hs []envelope.Header
			for name, vs := range raw.Headers() {
				hs = append(hs, envelope.Header{Name: name, Value: []byte(vs[0])})
			}
			m, err := envelope.Codec{Lines: true}.Decode(envelope.Record{Topic: raw.Subject(), Headers: hs, Payload: raw.Data()})
			if err != nil {
				return nil, err
			}
			out = append(out, m)
		}
	}
	return out, nil
}

// TestTwoPrefixesInOneStream: a stream deduplicates over all subjects, yet it keeps a
// message that two pipes publish under two prefixes twice.
func TestTwoPrefixesInOneStream(t *testing.T) {
	nc := connect(t, embedded(t))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "s", Subjects: []string{"live.>", "audit.>"}})
	if err != nil {
		t.Fatal(err)
	}
	msgs := []postrider.Message{{ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: "orders", Key: "k", Payload: []byte("x")}}
	for _, prefix := range []string{"live.", "audit.", "live."} {
		sink, err := natsbroker.NewSink(nc, &natsbroker.SinkOptions{Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
			t.Fatalf("%s: %v", prefix, errs)
		}
	}
	info, err := stream.Info(t.Context())
	if err != nil || info.State.Msgs != 2 {
		t.Errorf("%d messages stored, %v: want one under each prefix", info.State.Msgs, err)
	}
}

func TestSubject(t *testing.T) {
	for topic, want := range map[string]string{
		"orders.eu": "p.orders.eu", "a b": "p.a%20b", "a.*.>": "p.a.%2A.%3E", "..x.": "p.%2E%2Ex%2E",
		"$JS.API": "p.%24JS.API", "100%": "p.100%25", "größe": "p.größe", "a\r\nb": "p.a%0D%0Ab",
	} {
		if got := natsbroker.Subject("p.", topic); got != want {
			t.Errorf("%q: subject %q, want %q", topic, got, want)
		}
	}
}

// TestUserHeaderCannotCommand: a user header that asks for a rollup does not change
// the stream, and arrives as a header.
func TestUserHeaderCannotCommand(t *testing.T) {
	e := env(t, embedded(t))
	msgs := []postrider.Message{
		{ID: "01890a5d-ac96-774b-8cce-000000000001", Topic: e.Topic, Key: "a"},
		{ID: "01890a5d-ac96-774b-8cce-000000000002", Topic: e.Topic, Key: "b", Headers: map[string]string{"Nats-Rollup": "all"}},
	}
	if errs := e.Sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
	got, err := e.Log(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[1].Headers["Nats-Rollup"] != "all" {
		t.Errorf("the stream holds %+v", got)
	}
}

// TestTooLargeNamesTheLimit: the dead letter names the limit to change.
func TestTooLargeNamesTheLimit(t *testing.T) {
	nc := connect(t, embedded(t))
	sink, err := natsbroker.NewSink(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{{ID: "1", Topic: "orders", Type: "t", Payload: make([]byte, 2<<20)}}})
	if errs == nil || broker.Classify(errs[0]).Class != broker.ClassRejected || !strings.Contains(errs[0].Error(), "max_payload of 1048576") {
		t.Errorf("the answer is %v", errs)
	}
}

// TestTLSIsDemanded: a server without TLS receives nothing.
func TestTLSIsDemanded(t *testing.T) {
	url := embedded(t)
	for params, reached := range map[string]bool{"": true, "?tls=false": true, "?tls=true": false} {
		sink, err := natsbroker.Open(url+params, nil)
		if err != nil {
			t.Fatal(err)
		}
		errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{{ID: "1", Topic: "orders", Type: "t"}}})
		if errs == nil || (broker.Classify(errs[0]).Code == "NO_STREAM") != reached {
			t.Errorf("%q: the answer is %v", params, errs)
		}
		sink.Close()
	}
}

func TestNewSinkRefusesBuffering(t *testing.T) {
	nc, err := nats.Connect(embedded(t))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := natsbroker.NewSink(nc, nil); err == nil || !strings.Contains(err.Error(), "ReconnectBufSize(-1)") {
		t.Errorf("error %v", err)
	}
}
