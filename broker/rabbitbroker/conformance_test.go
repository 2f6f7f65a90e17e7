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

// versions are the newest one, and all with POSTRIDER_MATRIX=1.
func versions() []string {
	all := testserver.RabbitMQVersions()
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		return all
	}
	return all[len(all)-1:]
}

func TestConformance(t *testing.T) {
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			url := testserver.SharedRabbitMQ(t, version).URL
			brokertest.Run(t, func(t *testing.T) *brokertest.Env { return env(t, url) })
		})
	}
}

// env gives a case a quorum queue of its own; the sink goes through a proxy.
func env(t *testing.T, url string) *brokertest.Env {
	t.Helper()
	proxy, through := proxied(t, url)
	ch := channel(t, url)
	queue := declare(t, ch, amqp.Table{"x-single-active-consumer": true, "x-dead-letter-exchange": "dead"})
	sink := open(t, through+"?max-message-bytes=1048576")
	return &brokertest.Env{
		Sink: sink, Topic: queue, Missing: "nowhere-" + queue, TooLarge: 2 << 20, Largest: 1 << 20,
		Log:    func(ctx context.Context) ([]postrider.Message, error) { return log(ctx, url, queue) },
		Faults: proxy, Second: open(t, url), Stop: sink.Close,
		Source: func(context.Context) (broker.Source, func(), error) {
			s, err := rabbitbroker.OpenSource(url, rabbitbroker.SourceOptions{Queue: queue})
			if err != nil {
				return nil, nil, err
			}
			return s, s.Close, nil
		},
		Mortal: func(context.Context) (broker.Source, func(), error) {
			proxy, through := proxied(t, url)
			s, err := rabbitbroker.OpenSource(through, rabbitbroker.SourceOptions{Queue: queue})
			if err != nil {
				return nil, nil, err
			}
			t.Cleanup(s.Close)
			return s, func() { proxy.Cut(0) }, nil
		},
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

// channel is the client's own, for what the tests do themselves.
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

// declare makes a quorum queue, which goes with its server.
func declare(t *testing.T, ch *amqp.Channel, more amqp.Table) string {
	t.Helper()
	args := amqp.Table{"x-queue-type": "quorum"}
	for name, value := range more {
		args[name] = value
	}
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

// log reads a queue up to its end as it is now by the client alone, and leaves
// everything where it was: what a channel has not acknowledged when it ends goes
// back to its place.
func log(ctx context.Context, url, queue string) ([]postrider.Message, error) {
	c, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ch, err := c.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Qos(65535, 0, false); err != nil { // without, a quorum queue gives 2000
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
		case <-time.After(10 * time.Second):
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
