package natsbroker_test

import (
	"context"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/natsbroker"
)

// TestMaxHeldBytes: at its limit of unsettled bytes the source takes no
// more from the server, and continues when they are settled. A message above the
// limit is received too.
//
// Promises: G
func TestMaxHeldBytes(t *testing.T) {
	const n, size, limit = 40, 100 << 10, 512 << 10
	nc := connect(t, embedded(t))
	_, sink, name := filled(t, nc, 1)
	for i := range n {
		m := postrider.Message{Topic: "s.x", Key: "k", Version: int64(i + 2), Payload: make([]byte, size)}
		if i == n/2 {
			m.Payload = make([]byte, 800<<10)
		}
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}}); errs != nil {
			t.Fatal(errs)
		}
	}
	src, err := natsbroker.NewSource(nc, &natsbroker.SourceOptions{Stream: name, Group: "c", AckWait: time.Minute, MaxHeldBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	next, rounds := int64(1), 0
	for next <= n+1 {
		rounds++
		var held []broker.Verdict
		bytes, largest := 0, 0
		for wait := 20 * time.Second; ; wait = 300 * time.Millisecond {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			ds, err := src.Receive(ctx, 100)
			cancel()
			if err != nil {
				break // it takes no more
			}
			for _, d := range ds {
				if d.Message.Version != next {
					t.Fatalf("version %d is received, the next is %d", d.Message.Version, next)
				}
				next++
				bytes, largest = bytes+d.Message.Size(), max(largest, d.Message.Size())
				held = append(held, broker.Verdict{Delivery: d, Ack: true})
			}
		}
		if bytes > limit+largest {
			t.Fatalf("%d bytes are held, the limit is %d and one message of %d", bytes, limit, largest)
		}
		if len(held) == 0 {
			t.Fatalf("nothing is received after version %d", next-1)
		}
		if err := src.Settle(t.Context(), held); err != nil {
			t.Fatal(err)
		}
	}
	if rounds < 5 {
		t.Errorf("everything came in %d rounds", rounds)
	}
}
