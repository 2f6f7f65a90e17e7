package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/bench/database"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/inbox"
)

// consumeWorkers is the number of concurrent handlers in every way to consume.
const (
	consumeWorkers = 8
	consumeBatch   = 100
)

// childConsume handles messages in one way and prints the time.
func childConsume(ctx context.Context, url, name, run, count string) error {
	n, err := atoi(count)
	if err != nil {
		return err
	}
	handler, err := database.OpenHandler(ctx, url, run, consumeWorkers+1) // the handlers and the stash
	if err != nil {
		return err
	}
	defer handler.Close()
	w := &consuming{handler: handler, run: run, n: n}
	ways := map[string]func(context.Context) (time.Duration, error){
		"bare": w.bare(1), "check": w.check, "watermill": w.watermill,
		"inbox": w.consumer(1, inbox.AnyOrder), "latest": w.consumer(1, inbox.Latest),
		"barebatch": w.bare(consumeBatch), "inboxbatch": w.consumer(consumeBatch, inbox.AnyOrder),
	}
	way := ways[name]
	if way == nil {
		return errUsage
	}
	took, err := way(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("done %g\n", took.Seconds())
	<-ctx.Done()
	return nil
}

// consuming is one run over n messages. They are made on the way, so that no broker in
// memory is measured.
type consuming struct {
	handler database.Handler
	run     string
	n       int
}

func (w *consuming) message(i int) postrider.Message {
	m := database.Message("bench", i)
	m.Version = int64(i + 1)
	return m
}

// twice is the number of messages per duplicate.
const twice = 16

// deliveries returns the number of all deliveries, and arrival the message of the i-th
// one: the second copy follows the first at once, as after a rebalance.
func (w *consuming) deliveries() int   { return w.n + w.n/twice }
func (w *consuming) arrival(i int) int { return i - min((i+1)/(twice+1), w.n/twice) }

// bare runs only the handler, without a broker, with per messages in a transaction.
func (w *consuming) bare(per int) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		return w.each(w.n, per, func(from, to int) error {
			msgs := make([]postrider.Message, 0, per)
			for i := from; i < to; i++ {
				msgs = append(msgs, w.message(i))
			}
			return w.handler.Bare(ctx, msgs)
		})
	}
}

// check runs check-then-act.
func (w *consuming) check(ctx context.Context) (time.Duration, error) {
	return w.each(w.deliveries(), 1, func(i, _ int) error {
		m := w.message(w.arrival(i))
		return w.handler.CheckThenAct(ctx, m.ID, m.Payload)
	})
}

// each calls fn for ranges of length per up to n, from consumeWorkers goroutines.
func (w *consuming) each(n, per int, fn func(from, to int) error) (time.Duration, error) {
	var (
		began = time.Now()
		wg    sync.WaitGroup
		mu    sync.Mutex
		next  int
		first error
	)
	for range consumeWorkers {
		wg.Go(func() {
			for {
				mu.Lock()
				from := next
				next += per
				stop := from >= n || first != nil
				mu.Unlock()
				if stop {
					return
				}
				if err := fn(from, min(from+per, n)); err != nil {
					mu.Lock()
					first = err
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return time.Since(began), first
}

// consumer runs Postrider's consumer until everything is acknowledged.
func (w *consuming) consumer(batch int, order inbox.Order) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		src := &endless{w: w, done: make(chan struct{}), given: make(chan struct{}, 1)}
		consume := w.handler.Consumer(src, &consumer.Options{
			Name: w.run, Concurrency: consumeWorkers, Prefetch: 4 * consumeWorkers * batch, Batch: batch,
			Order: func(string) inbox.Order { return order },
		})
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		began := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- consume(ctx) }()
		select {
		case err := <-ended:
			return 0, fmt.Errorf("the consumer ended by itself: %w", err)
		case <-src.done:
		}
		took := time.Since(began)
		stop()
		return took, <-ended
	}
}

// endless is a source that is never empty before all messages were delivered.
type endless struct {
	w     *consuming
	done  chan struct{} // closed when everything is acknowledged
	given chan struct{} // has a token when a message was returned

	mu          sync.Mutex
	next, acked int
	back        []broker.Delivery
}

func (s *endless) Info() broker.SourceInfo { return broker.SourceInfo{Name: "bench"} }

func (s *endless) Extend(context.Context, []broker.Delivery) error { return nil }

func (s *endless) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if ds := s.take(limit); len(ds) > 0 {
			return ds, nil
		}
		select {
		case <-s.given:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *endless) take(limit int) []broker.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(limit, len(s.back))
	ds := append(make([]broker.Delivery, 0, min(limit, len(s.back)+s.w.deliveries()-s.next)), s.back[:n]...)
	s.back = s.back[n:]
	for ; len(ds) < limit && s.next < s.w.deliveries(); s.next++ {
		ds = append(ds, broker.Delivery{Message: s.w.message(s.w.arrival(s.next)), Attempt: 1, Origin: "bench/0"})
	}
	return ds
}

func (s *endless) Settle(_ context.Context, verdicts []broker.Verdict) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.acked
	for _, v := range verdicts {
		if v.Ack {
			s.acked++
		} else {
			s.back = append(s.back, v.Delivery)
		}
	}
	if len(s.back) > 0 {
		select {
		case s.given <- struct{}{}:
		default:
		}
	}
	if all := s.w.deliveries(); was < all && s.acked == all {
		close(s.done)
	}
	return nil
}
