package promises

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider"
)

// patience is the time for which a broker of these tests waits for a silent consumer:
// AckWait on NATS, the session timeout on Kafka.
func (b *server) patience() time.Duration {
	if b.Name == "nats" {
		return 2 * time.Second
	}
	return 6 * time.Second
}

// longHandlers runs handlers that take longer than the broker's patience, beside another
// consumer that could take over. Each handler runs once.
func longHandlers(c *effectScene) {
	t, b, s, topic := c.T, c.b, c.s, c.topic
	const keys, each = 4, 5
	b.publish(t, numbered(topic, keys, 0, each)...)
	var mu sync.Mutex
	runs, stall := map[string]int{}, time.Duration(0)
	opts := quick
	opts.Concurrency = keys
	opts.HandlerTimeout = time.Minute
	h := func(ctx context.Context, do func(string, ...any) error, m postrider.Message) error {
		mu.Lock()
		runs[m.ID]++
		mu.Unlock()
		if err := book(do, m); err != nil {
			return err
		}
		if !strings.HasSuffix(m.ID, fmt.Sprintf("%06d", 0)) {
			return nil
		}
		late := work(ctx, b.patience()+2500*time.Millisecond)
		mu.Lock()
		stall = max(stall, late)
		mu.Unlock()
		return ctx.Err()
	}
	first, second := startConsumer(t, s, b, topic, &opts, h), startConsumer(t, s, b, topic, &opts, h)
	until(t, 60*time.Second, "every message has its effect", func() bool { return s.count(t) >= keys*each })
	until(t, 20*time.Second, "everything is acknowledged", func() bool { return b.left(t, topic, consumes) == 0 })
	first.stop()
	second.stop()
	s.check(t, keys, each)
	mu.Lock()
	defer mu.Unlock()
	for id, n := range runs {
		if n != 1 {
			t.Errorf("the handler of %s ran %d times", id, n)
		}
	}
	if n := b.deliveries(t, topic); n > keys*each && stall < b.patience()/4 { // otherwise this process was starved and silent
		t.Errorf("%d deliveries of %d messages", n, keys*each)
	}
}

// work pauses for a duration and returns the delay of this process during it.
func work(ctx context.Context, long time.Duration) (late time.Duration) {
	const every = 50 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	began := time.Now()
	for last := began; time.Since(began) < long; last = time.Now() {
		select {
		case <-tick.C:
			late = max(late, time.Since(last)-every)
		case <-ctx.Done():
			return late
		}
	}
	return late
}

// deliveries returns the server's number of deliveries to the consumer, 0 if it does not
// count them.
func (b *server) deliveries(t *testing.T, topic string) int {
	t.Helper()
	if b.Name != "nats" {
		return 0
	}
	nc, err := nats.Connect(b.URL, nats.Timeout(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	c, err := js.Consumer(t.Context(), topic, consumes)
	if err != nil {
		t.Fatal(err)
	}
	return int(c.CachedInfo().Delivered.Consumer)
}
