package rabbitbroker_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

// versions returns the newest version, and all with POSTRIDER_MATRIX=1.
func versions() []string {
	all := testserver.RabbitMQVersions()
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		return all
	}
	return all[len(all)-1:]
}

// Promises: L, O
func TestConformance(t *testing.T) {
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			url := testserver.SharedRabbitMQ(t, version).URL
			brokertest.Run(t, func(t *testing.T) *brokertest.Env {
				e := env(t, url)
				e.Server = "RabbitMQ " + version
				return e
			})
		})
	}
}

// env gives a case a quorum queue of its own. The sink connects through a proxy.
func env(t *testing.T, url string) *brokertest.Env {
	t.Helper()
	proxy, through := proxied(t, url)
	ch := channel(t, url)
	queue := declare(t, ch, single())
	sink := open(t, through+"?max-message-bytes=1048576")
	source := func(url string) (broker.Source, func(), error) {
		s, err := rabbitbroker.OpenSource(url, &rabbitbroker.SourceOptions{Queue: queue})
		if err != nil {
			return nil, nil, err
		}
		t.Cleanup(s.Close)
		return s, s.Close, nil
	}
	return &brokertest.Env{
		Sink: sink, Topic: queue, Missing: "nowhere-" + queue, TooLarge: 2 << 20, Largest: 1 << 20,
		Log:    func(ctx context.Context) ([]postrider.Message, error) { return log(ctx, url, queue) },
		LogOf:  func(ctx context.Context, queue string) ([]postrider.Message, error) { return log(ctx, url, queue) },
		Faults: proxy, Second: open(t, url), Stop: sink.Close,
		Operator: operator(ch, url),
		Foreign: func(ctx context.Context, payload []byte) error {
			return ch.PublishWithContext(ctx, "", queue, true, false, amqp.Publishing{
				Body: payload, DeliveryMode: amqp.Persistent, MessageId: rand.Text(),
			})
		},
		Source: func(context.Context) (broker.Source, func(), error) { return source(url) },
		Mortal: func(context.Context) (broker.Source, func(), error) {
			proxy, through := proxied(t, url)
			s, _, err := source(through)
			return s, func() { proxy.Cut(0) }, err
		},
		Flaky: func(context.Context) (broker.Source, brokertest.Faults, func(), error) {
			proxy, through := proxied(t, url)
			s, end, err := source(through)
			return s, proxy, end, err
		},
		Routed: func(_ context.Context, route envelope.Router) (broker.Sink, error) {
			s, err := rabbitbroker.Open(url, &rabbitbroker.SinkOptions{Route: route})
			if err == nil {
				t.Cleanup(s.Close)
			}
			return s, err
		},
		Without: map[string]string{
			"sink/dedup":    "a queue keeps what is sent again",
			"sink/refused":  "no queue has a limit of its own for a message's size",
			"source/extend": "a delivery's time limit is the broker's consumer_timeout, half an hour",
			"sink/revoked":  "rights need a user: TestTopicPermission has one",
		},
	}
}

// single returns the arguments of a queue that a Source accepts.
func single() amqp.Table {
	return amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true, "x-dead-letter-exchange": "dead"}
}

// operator acts on queues that take at most 3000 messages.
func operator(ch *amqp.Channel, url string) brokertest.Operator {
	make := func(name string) error {
		args := single()
		args["x-max-length"], args["x-overflow"] = 3000, "reject-publish"
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return err
	}
	return brokertest.Operator{
		Make: func(context.Context) (string, error) {
			name := "made-" + strings.ToLower(rand.Text()[:12])
			return name, make(name)
		},
		Delete: func(_ context.Context, queue string) error {
			_, err := ch.QueueDelete(queue, false, false, false)
			return err
		},
		Again: func(_ context.Context, queue string) error { return make(queue) },
		Fill: func(ctx context.Context, queue string) (func(context.Context) error, error) {
			return func(context.Context) error {
				_, err := ch.QueuePurge(queue, false)
				return err
			}, fill(ctx, url, queue)
		},
	}
}

// fill publishes until the queue refuses.
func fill(ctx context.Context, url, queue string) error {
	c, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer c.Close()
	ch, err := c.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return err
	}
	for {
		var last []*amqp.DeferredConfirmation
		for range 500 {
			d, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
			if err != nil {
				return err
			}
			last = append(last, d)
		}
		for _, d := range last {
			if acked, err := d.WaitContext(ctx); err != nil || !acked {
				return err
			}
		}
	}
}

func open(t *testing.T, url string) *rabbitbroker.Sink {
	t.Helper()
	sink, err := rabbitbroker.Open(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	return sink
}

// channel returns a channel of the client, for the tests' own commands.
func channel(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	c, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// declare declares a queue, which lasts as long as its server.
func declare(t *testing.T, ch *amqp.Channel, args amqp.Table) string {
	t.Helper()
	name := "q-" + strings.ToLower(rand.Text()[:12])
	if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	return name
}

// proxied returns a proxy and the URL that goes through it.
func proxied(t *testing.T, raw string) (*faultproxy.Proxy, string) {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.New(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	u.Host = proxy.Addr()
	return proxy, u.String()
}

// log reads a queue up to its present end with the client alone, and removes nothing:
// unacknowledged messages return to their place when the channel
// ends.
func log(ctx context.Context, url, queue string) ([]postrider.Message, error) {
	out, err := read(ctx, url, queue)
	if err != nil || len(out) == 0 {
		return out, err
	}
	return out, ready(ctx, url, queue, len(out))
}

// ready waits until a reader's messages have returned to the queue, so that
// the next reader finds all of them.
func ready(ctx context.Context, url, queue string, n int) error {
	c, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer c.Close()
	ch, err := c.Channel()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil || q.Messages >= n {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the queue has got back %d of %d messages", q.Messages, n)
		}
	}
}

func read(ctx context.Context, url, queue string) ([]postrider.Message, error) {
	c, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ch, err := c.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Qos(65535, 0, false); err != nil { // without it a quorum queue delivers 2000
		return nil, err
	}
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil || q.Messages == 0 {
		return nil, err
	}
	ds, err := ch.Consume(queue, "log", false, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	var out []postrider.Message
	for len(out) < q.Messages {
		select {
		case d, ok := <-ds:
			if !ok {
				return nil, errors.New("the channel ended")
			}
			m, err := decode(&d)
			if err != nil {
				return nil, err
			}
			out = append(out, m)
		case <-time.After(time.Minute):
			return nil, fmt.Errorf("%d of %d messages came", len(out), q.Messages)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return out, nil
}

func decode(d *amqp.Delivery) (postrider.Message, error) {
	var hs []envelope.Header
	for name, value := range d.Headers {
		if text, ok := value.(string); ok {
			hs = append(hs, envelope.Header{Name: name, Value: []byte(text)})
		}
	}
	return envelope.Codec{}.Decode(envelope.Record{Topic: d.RoutingKey, Headers: hs, Payload: d.Body})
}
