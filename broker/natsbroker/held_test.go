package natsbroker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/envelope"
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

// TestAWaitingMessageIsRoutedOnce: while a message waits for its answer, the router, which may
// validate payloads and count them, is not asked again.
func TestAWaitingMessageIsRoutedOnce(t *testing.T) {
	url := embedded(t)
	filled(t, connect(t, url), 1)
	proxy, through := proxied(t, url)
	var asked atomic.Int64
	sink, err := natsbroker.NewSink(connect(t, through), &natsbroker.SinkOptions{Route: func(m *postrider.Message) (envelope.Route, error) {
		asked.Add(1)
		return envelope.Route{Topic: m.Topic, Key: m.Key}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	send := func(ctx context.Context, version int64) []error {
		return sink.Deliver(ctx, broker.Batch{Messages: []postrider.Message{{Topic: "s.x", Key: "k", Version: version}}})
	}
	if errs := send(t.Context(), 2); errs != nil { // it subscribes to the answers
		t.Fatal(errs)
	}
	proxy.Freeze()
	defer proxy.Restore()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	asked.Store(0)
	if errs := send(ctx, 3); errs == nil || asked.Load() != 1 {
		t.Errorf("answered %v, routed %d times", errs, asked.Load())
	}
}
