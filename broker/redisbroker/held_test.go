package redisbroker_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// TestMaxHeldBytes: at its limit of unsettled bytes the source takes no
// more from the server, and continues when they are settled.
//
// Promises: G
func TestMaxHeldBytes(t *testing.T) {
	t.Parallel()
	const n, size, limit = 60, 512 << 10, 4 << 20
	addr, topic := testserver.SharedRedis(t, testserver.Redis7).Addr, "bytes"+rand.Text()
	sink := open(t, "redis://"+addr)
	msgs := numbered(topic, "k", 1, n)
	for i := range msgs {
		msgs[i].Payload = make([]byte, size)
	}
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
	src := source(t, "redis://"+addr, topic, redisbroker.SourceOptions{Group: "g", MaxHeldBytes: limit})
	for next, rounds := int64(1), 0; next <= n; rounds++ {
		var held []broker.Delivery
		for wait := 20 * time.Second; ; wait = 200 * time.Millisecond {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			ds, err := src.Receive(ctx, n)
			cancel()
			if err != nil {
				break // it takes no more
			}
			held = append(held, ds...)
		}
		if len(held) == 0 || len(held)*size > limit+size {
			t.Fatalf("round %d: %d KiB are held, the limit is %d", rounds, len(held)*size>>10, limit>>10)
		}
		for _, d := range held {
			if d.Message.Version != next {
				t.Fatalf("version %d is received, the next is %d", d.Message.Version, next)
			}
			next++
		}
		settle(t, src, held)
	}
}
