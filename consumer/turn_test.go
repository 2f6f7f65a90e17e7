package consumer

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/broker"
)

// suspicious is a processor that sets messages of the key "s" aside. When it runs one
// alone, it passes the number of other running messages to seen.
func suspicious(seen func(at turn, others int32), work func(d broker.Delivery)) processor {
	var running atomic.Int32
	return func(_ context.Context, d broker.Delivery, at turn) (broker.Verdict, bool) {
		others := running.Add(1) - 1
		defer running.Add(-1)
		if d.Message.Key == "s" {
			if !at.last {
				return broker.Verdict{}, true
			}
			seen(at, others)
		}
		work(d)
		if d.Message.Key == "s" {
			seen(at, running.Load()-1)
		}
		return broker.Verdict{Delivery: d, Ack: true}, false
	}
}

// TestAloneMeansAlone: while a message that was set aside runs, no other message
// runs, whatever waits; two such messages do not wait for each other for ever.
func TestAloneMeansAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &script{batches: make(chan []broker.Delivery)}
		ctx, cancel := context.WithCancel(t.Context())
		turns := 0
		process := suspicious(func(at turn, others int32) {
			turns++
			if !at.alone || others != 0 {
				t.Errorf("alone %v, beside %d others", at.alone, others)
			}
		}, func(broker.Delivery) { time.Sleep(time.Second) })
		done := make(chan error, 1)
		opts := (&Options{Concurrency: 3}).defaults()
		go func() { done <- newRun(src, opts, process).run(ctx) }()
		var ds []broker.Delivery
		for i := range 12 {
			ds = append(ds, delivery(string(rune('a'+i)), ""))
		}
		ds[5].Message.Key = "s"
		ds[7].Message.Key, ds[7].Message.Topic = "s", "other"
		src.batches <- ds
		time.Sleep(time.Minute) // in the bubble
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if turns != 4 || len(src.verdicts) != len(ds) {
			t.Errorf("%d looks at the two, want 4; verdicts %q", turns, src.verdicts)
		}
	})
}

// TestHungHandlerDoesNotStopTheConsumer: a message that cannot run alone runs beside a
// hanging handler, with turn.alone false: a crash would not prove its guilt.
//
// Promises: S
func TestHungHandlerDoesNotStopTheConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &script{batches: make(chan []broker.Delivery)}
		ctx, cancel := context.WithCancel(t.Context())
		free := make(chan struct{})
		process := suspicious(func(at turn, _ int32) {
			if at.alone {
				t.Error("called alone beside a handler that hangs")
			}
		}, func(d broker.Delivery) {
			if d.Message.ID == "hangs" {
				<-free
			}
		})
		done := make(chan error, 1)
		go func() { done <- newRun(src, (&Options{Concurrency: 3}).defaults(), process).run(ctx) }()
		src.batches <- []broker.Delivery{delivery("hangs", "")}
		synctest.Wait()
		src.batches <- []broker.Delivery{delivery("suspect", "s"), delivery("next", "")}
		time.Sleep(2 * time.Minute) // in the bubble
		src.mu.Lock()
		if len(src.verdicts) != 2 {
			t.Errorf("verdicts %q, want those of all but the one that hangs", src.verdicts)
		}
		src.mu.Unlock()
		close(free)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
