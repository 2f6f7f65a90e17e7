package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
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
	conf, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	conf.MaxConns = consumeWorkers + 1 // the handlers and the stash
	pool, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := pool.Ping(ctx); err != nil {
		return err
	}
	w := &consuming{pool: pool, run: run, n: n}
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
	pool *pgxpool.Pool
	run  string
	n    int
}

func (w *consuming) message(i int) postrider.Message {
	m := benchMessage("bench", i)
	m.Version = int64(i + 1)
	return m
}

// twice is the number of messages per duplicate.
const twice = 16

// deliveries returns the number of all deliveries, and arrival the message of the i-th
// one: the second copy follows the first at once, as after a rebalance.
func (w *consuming) deliveries() int   { return w.n + w.n/twice }
func (w *consuming) arrival(i int) int { return i - min((i+1)/(twice+1), w.n/twice) }

const insertEffect = "INSERT INTO effect (run, id, payload) VALUES ($1, $2, $3)"

func (w *consuming) effect(ctx context.Context, tx pgx.Tx, id string, payload []byte) error {
	_, err := tx.Exec(ctx, insertEffect, w.run, id, payload)
	return err
}

// bare runs only the handler, without a broker, with per messages in a transaction.
func (w *consuming) bare(per int) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		return w.each(w.n, per, func(from, to int) error {
			return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
				for i := from; i < to; i++ {
					m := w.message(i)
					if err := w.effect(ctx, tx, m.ID, m.Payload); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// check runs check-then-act.
func (w *consuming) check(ctx context.Context) (time.Duration, error) {
	return w.each(w.deliveries(), 1, func(i, _ int) error {
		m := w.message(w.arrival(i))
		return w.checkThenAct(ctx, m.ID, m.Payload)
	})
}

// checkThenAct is the usual hand-written transaction.
func (w *consuming) checkThenAct(ctx context.Context, id string, payload []byte) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		var there bool
		err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM seen WHERE run = $1 AND id = $2)", w.run, id).Scan(&there)
		if err != nil || there {
			return err
		}
		if err := w.effect(ctx, tx, id, payload); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO seen VALUES ($1, $2)", w.run, id)
		return err
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
		c := consumer.New(src, consumer.Pgx(w.pool), &consumer.Options{
			Name: w.run, Concurrency: consumeWorkers, Prefetch: 4 * consumeWorkers * batch, Batch: batch,
			Order: func(string) inbox.Order { return order },
		})
		c.HandleMessage("bench.event", func(ctx context.Context, tx pgx.Tx, m postrider.Message) error {
			return w.effect(ctx, tx, m.ID, m.Payload)
		})
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		began := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
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
