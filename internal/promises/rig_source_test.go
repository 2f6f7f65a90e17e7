package promises

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// onRealBrokers starts each broker once for all tests of run, which run in parallel: they
// mostly wait.
func onRealBrokers(t *testing.T, run func(t *testing.T, b *server)) {
	t.Helper()
	for name, start := range map[string]func(*testing.T) *server{
		"nats":  func(t *testing.T) *server { t.Helper(); return natsServer(t, testserver.StartNATS(t)) },
		"kafka": func(t *testing.T) *server { t.Helper(); return kafkaServer(t, testserver.StartKafka(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, start(t))
		})
	}
}

// left returns the number of the topic's messages that the consumer has not acknowledged.
func (b *server) left(t *testing.T, topic, consumer string) int {
	t.Helper()
	n, err := b.Lag(t.Context(), topic, consumer)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// publish writes messages as a relay does, without the broker's own deduplication.
func (b *server) publish(t *testing.T, msgs ...postrider.Message) {
	t.Helper()
	var sink broker.Sink
	if b.Name == "nats" {
		s, err := natsbroker.Open(b.URL+"?dedup=off", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		sink = s
	} else {
		s, err := kafkabroker.Open(b.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		sink = s
	}
	for from := 0; from < len(msgs); from += 100 {
		page := msgs[from:min(from+100, len(msgs))]
		var errs []error
		for range 20 { // a broker that has just restarted may throttle
			if errs = sink.Deliver(t.Context(), broker.Batch{Messages: page}); errs == nil {
				break
			}
		}
		if errs != nil {
			t.Fatalf("publish: %v", errs)
		}
	}
}

// openSource returns a source for one process. Kafka removes a killed member of a group
// after 6 s, the shortest time that a broker accepts.
func openSource(name, url, topic, consumer string, kafka ...kgo.Opt) (broker.Source, func(), error) {
	if name == "nats" {
		nc, err := nats.Connect(url, nats.Timeout(30*time.Second), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
		if err != nil {
			return nil, nil, err
		}
		src, err := natsbroker.NewSource(nc, &natsbroker.SourceOptions{Stream: topic, Group: consumer, AckWait: 2 * time.Second})
		if err != nil {
			nc.Close()
			return nil, nil, err
		}
		return src, func() { src.Close(); nc.Close() }, nil
	}
	src, err := kafkabroker.NewSource(append([]kgo.Opt{
		kgo.SeedBrokers(url[len("kafka://"):]),
		kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(500 * time.Millisecond),
	}, kafka...), &kafkabroker.SourceOptions{
		Group: consumer, Topics: []string{topic},
	})
	if err != nil {
		return nil, nil, err
	}
	return src, src.Close, nil
}

// until polls for a condition that other processes cause.
func until(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*limit) // a slow machine with others on it gets more
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", 3*limit, what)
		}
	}
}

// numbered returns the messages from to to-1 of every key, with unique ids.
func numbered(topic string, keys, from, to int) (msgs []postrider.Message) {
	for n := from; n < to; n++ {
		for k := range keys {
			key := fmt.Sprint("k", k)
			m := postrider.JSON(topic, key, "order.placed", order{key, n})
			m.ID = fmt.Sprintf("01890a5d-ac96-774b-bcce-%06d%06d", k, n)
			msgs = append(msgs, m)
		}
	}
	return msgs
}
