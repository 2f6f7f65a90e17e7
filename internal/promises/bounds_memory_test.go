package promises

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/internal/testserver"
)

// TestLargeMessagesMemory gives a consumer a backlog of messages of nearly a mebibyte
// each: its memory stays within the bound in bytes, although the bound in messages would
// admit all of it.
//
// Promises: G
func TestLargeMessagesMemory(t *testing.T) {
	const n, size, bound = 160, 1000 << 10, 12 << 20
	b := natsServer(t, testserver.StartNATS(t))
	b.make(t, "large", 0)
	s := newEffects(t, pgPgx)
	for _, m := range numbered("large", n, 0, 1) {
		m.Payload = make([]byte, size)
		b.publish(t, m)
	}
	nc, err := nats.Connect(b.URL, nats.Timeout(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	src, err := natsbroker.NewSource(nc, &natsbroker.SourceOptions{Stream: "large", Group: consumes, MaxHeldBytes: bound})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	before := heap()
	var most atomic.Uint64
	opts := consumer.Options{Name: consumes, Prefetch: n, PrefetchBytes: bound, Concurrency: 2}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- runConsumer(ctx, s.kind, s.dsn, src, &opts, []string{"order.placed"}, func(_ context.Context, do func(string, ...any) error, m postrider.Message) error {
			if h := heap(); h > most.Load() {
				most.Store(h)
			}
			return book(do, m)
		})
	}()
	until(t, 60*time.Second, "every message has its effect", func() bool { return s.count(t) >= n })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	grown := int64(most.Load()) - int64(before)
	t.Logf("%d MiB of messages, the heap grew by %d MiB", n*size>>20, grown>>20)
	// The same again for messages between the server and the log, usually 3 MiB.
	if grown > bound*2 {
		t.Errorf("the heap grew by %d MiB with %d MiB allowed in flight", grown>>20, bound>>20)
	}
}
