package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
)

// held counts deliveries of a source that are not settled yet.
type held struct {
	broker.Source
	now, most atomic.Int64
}

func (h *held) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := h.Source.Receive(ctx, limit)
	if n := h.now.Add(int64(len(ds))); n > h.most.Load() { // one goroutine receives
		h.most.Store(n)
	}
	return ds, err
}

func (h *held) Settle(ctx context.Context, vs []broker.Verdict) error {
	err := h.Source.Settle(ctx, vs)
	if err == nil {
		h.now.Add(-int64(len(vs)))
	}
	return err
}

// TestOtherKeysFlow: keys whose handler fails, fails sometimes, panics or hangs never
// delay other keys, and no more than Prefetch messages are in
// hand.
//
// Promises: S
func TestOtherKeysFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const good, each, bad, prefetch = 20, 50, 6, 40
		b := membroker.New(nil)
		var msgs []postrider.Message
		add := func(key string) {
			msgs = append(msgs, postrider.Message{ID: fmt.Sprint(len(msgs) + 1), Topic: "t", Key: key, Type: "x"})
		}
		for range bad {
			for _, key := range []string{"fails", "panics", "hangs", "some"} {
				add(key)
			}
		}
		for range each {
			for k := range good {
				add(fmt.Sprint("good ", k))
			}
		}
		for i, err := range b.Sink().Deliver(t.Context(), broker.Batch{Messages: msgs}) {
			if err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		src := &held{Source: b.Source("billing", "t")}
		c := New(src, DB[*sql.Tx](&flaky{}), &Options{Name: "billing", Prefetch: prefetch})
		var done, some atomic.Int64
		var last atomic.Pointer[time.Time]
		rnd := rand.New(rand.NewPCG(1, 2))
		c.HandleMessage("x", func(ctx context.Context, _ *sql.Tx, m postrider.Message) error {
			switch m.Key {
			case "fails":
				return errors.New("always")
			case "panics":
				panic("always")
			case "hangs":
				<-ctx.Done()
				return ctx.Err()
			case "some": // one message of it at a time
				if rnd.IntN(10) < 3 {
					return errors.New("now and then")
				}
				some.Add(1)
				return nil
			}
			time.Sleep(time.Millisecond)
			now := time.Now()
			last.Store(&now)
			done.Add(1)
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		began := time.Now()
		go func() { ended <- c.Run(ctx) }()
		time.Sleep(10 * time.Minute) // in the bubble
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := done.Load(); n != good*each {
			t.Fatalf("%d of %d messages of good keys had their effect", n, good*each)
		}
		// 7 handlers share 1000 ms of work; the other one waits for the handler that hangs.
		if took := last.Load().Sub(began); took > time.Second {
			t.Errorf("the good keys took %v beside the bad ones", took)
		}
		if n := some.Load(); n != bad {
			t.Errorf("%d of %d messages that fail now and then had their effect", n, bad)
		}
		if n := src.most.Load(); n > prefetch {
			t.Errorf("%d messages were in hand at once, Prefetch is %d", n, prefetch)
		}
	})
}
