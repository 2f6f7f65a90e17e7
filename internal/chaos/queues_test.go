package chaos

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

func startRedis(t *testing.T) *server {
	t.Helper()
	s, _ := redisServer(t)
	return s
}

func redisServer(t *testing.T) (_ *server, addr string) {
	t.Helper()
	s := testserver.StartRedis(t, testserver.Redis7)
	client := redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { _ = client.Close() })
	sink := func(t *testing.T, addr string) broker.Sink {
		sink, err := redisbroker.Open("redis://"+addr+"/?create=off&max-message-bytes=20000", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sink.Close)
		return sink
	}
	return &server{
		kill: s.Kill, stop: s.Stop, restart: s.Restart, freeze: s.Freeze, thaw: s.Thaw, tooBig: "TOO_LARGE", kills: 3,
		sink: func(t *testing.T) broker.Sink { return sink(t, s.Addr) },
		make: func(t *testing.T, topic string, _ int) {
			if err := client.XGroupCreateMkStream(t.Context(), topic, "g", "0").Err(); err != nil {
				t.Fatal(err)
			}
		},
		read: func(t *testing.T, topic string) (arrived []string) {
			entries, err := client.XRange(t.Context(), topic, "-", "+").Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				payload, _ := e.Values["payload"].(string)
				arrived = append(arrived, payload)
			}
			return arrived
		},
		remove: func(t *testing.T, topic string) {
			if err := client.Del(t.Context(), topic).Err(); err != nil {
				t.Fatal(err)
			}
		},
		full: func(t *testing.T, _ string) func() {
			set := func(limit string) {
				if err := client.ConfigSet(t.Context(), "maxmemory", limit).Err(); err != nil {
					t.Fatal(err)
				}
			}
			set("1") // every command that needs memory is refused
			return func() { set("0") }
		},
		through: func(t *testing.T) (broker.Sink, *faultproxy.Proxy) {
			p := proxied(t, s.Addr)
			return sink(t, p.Addr()), p
		},
	}, s.Addr
}

func startRabbitMQ(t *testing.T) *server {
	t.Helper()
	return rabbitServer(testserver.StartRabbitMQ(t, "4.0"))
}

func rabbitServer(s *testserver.RabbitMQ) *server {
	r := &rabbit{s}
	return &server{
		kill: s.Kill, stop: s.Stop, restart: s.Restart, freeze: s.Freeze, thaw: s.Thaw, tooBig: "MESSAGE_TOO_LARGE", kills: 1, slow: true,
		sink: func(t *testing.T) broker.Sink { return rabbitSink(t, s.URL) },
		make: func(t *testing.T, topic string, _ int) {
			r.do(t, func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare(topic, true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": -1})
				return err
			})
			// A node that is killed before its register of members is on the disk starts the
			// queue "as a new one", which has no leader and confirms nothing.
			if err := s.Ctl(t.Context(), "eval", "[dets:sync(T) || T <- dets:all()]."); err != nil {
				t.Fatal(err)
			}
		},
		read: r.read,
		remove: func(t *testing.T, topic string) {
			r.do(t, func(ch *amqp.Channel) error { _, err := ch.QueueDelete(topic, false, false, false); return err })
		},
		full: func(t *testing.T, topic string) func() {
			if err := s.Ctl(t.Context(), "set_policy", topic, "^"+topic+"$", `{"max-length": 210, "overflow": "reject-publish"}`); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := s.Ctl(t.Context(), "clear_policy", topic); err != nil {
					t.Fatal(err)
				}
			}
		},
		through: func(t *testing.T) (broker.Sink, *faultproxy.Proxy) {
			u, err := url.Parse(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			p := proxied(t, u.Host)
			return rabbitSink(t, strings.Replace(s.URL, u.Host, p.Addr(), 1)), p
		},
	}
}

func rabbitSink(t *testing.T, url string) broker.Sink {
	t.Helper()
	sink, err := rabbitbroker.Open(url+"?max-message-bytes=20000", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	return sink
}

// rabbit has a connection for each act: the node comes and goes.
type rabbit struct{ *testserver.RabbitMQ }

func (r *rabbit) do(t *testing.T, act func(*amqp.Channel) error) {
	t.Helper()
	conn, err := amqp.Dial(r.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := act(ch); err != nil {
		t.Fatal(err)
	}
}

// read acknowledges nothing: all goes back to its place.
func (r *rabbit) read(t *testing.T, topic string) (arrived []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r.do(t, func(ch *amqp.Channel) error {
		if err := ch.Qos(65535, 0, false); err != nil {
			return err
		}
		q, err := ch.QueueDeclarePassive(topic, true, false, false, false, nil)
		if err != nil {
			return err
		}
		deliveries, err := ch.ConsumeWithContext(ctx, topic, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for len(arrived) < q.Messages {
			d, ok := <-deliveries
			if !ok {
				t.Fatalf("%d of %d messages came", len(arrived), q.Messages)
			}
			arrived = append(arrived, string(d.Body))
		}
		return nil
	})
	return arrived
}
