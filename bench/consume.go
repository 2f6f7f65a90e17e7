package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/outbox"
)

// consumeResult is the JSON object of the consume workload: effects per second
// of a handler that inserts one row, all rounds together.
type consumeResult struct {
	Workload     string  `json:"workload"`
	Bare         float64 `json:"bare_per_s"`            // the handler's transaction and nothing else
	Check        float64 `json:"check_then_act_per_s"`  // SELECT whether it was there, then act
	CheckDoubles int     `json:"check_then_act_double"` // effects that it has twice: one message of 16 comes twice
	Watermill    float64 `json:"watermill_per_s"`       // the same in a Watermill router
	WaterDoubles int     `json:"watermill_double"`      // likewise
	Inbox        float64 `json:"inbox_per_s"`           // the consumer
	Latest       float64 `json:"latest_per_s"`          // the same with an order
	BareBatch    float64 `json:"bare_batch_per_s"`      // the handler a hundred times in a transaction
	InboxBatch   float64 `json:"inbox_batch_per_s"`     // the consumer with Batch: 100
	Double       int     `json:"double"`                // effects of the consumers beyond one per message
	Missing      int     `json:"missing"`
	Ratios       struct {
		OfBare      float64 `json:"of_bare"`
		BatchOfBare float64 `json:"batch_of_bare_batch"`
	} `json:"ratios"`
}

// consumeWorkers is how many handlers run at once, in every way to consume.
const (
	consumeWorkers = 8
	consumeBatch   = 100
)

const insertEffect = "INSERT INTO effect (run, id, payload) VALUES ($1, $2, $3)"

// runConsume handles the same messages in several ways, in turn.
func runConsume(ctx context.Context, c config) (*consumeResult, error) {
	pg, err := testserver.LaunchPostgres(ctx, c.postgres, "", testserver.Durable(), testserver.Throughput())
	if err != nil {
		return nil, err
	}
	defer pg.Close()
	pool, err := newOutbox(ctx, pg.URL)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := makeEffects(ctx, pool); err != nil {
		return nil, err
	}
	w := &consuming{pool: pool, msgs: make([]postrider.Message, c.messages)}
	for i := range w.msgs {
		w.msgs[i] = benchMessage("bench", i)
		w.msgs[i].Version = int64(i + 1)
	}
	ways := []*way{
		{name: "bare", run: w.bare(1)},
		{name: "check", run: w.check},
		{name: "watermill", run: w.watermill},
		{name: "inbox", run: w.consumer(1, inbox.AnyOrder)},
		{name: "latest", run: w.consumer(1, inbox.Latest)},
		{name: "barebatch", run: w.bare(consumeBatch)},
		{name: "inboxbatch", run: w.consumer(consumeBatch, inbox.AnyOrder)},
	}
	for round := range c.rounds {
		for _, x := range ways {
			run := fmt.Sprint(x.name, round)
			took, err := x.run(ctx, run)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", run, err)
			}
			x.took += took
			if err := x.count(ctx, pool, run, c.messages); err != nil {
				return nil, err
			}
			say("%s: %.0f/s", run, float64(c.messages)/took.Seconds())
		}
	}
	res := &consumeResult{Workload: "consume", CheckDoubles: ways[1].double, WaterDoubles: ways[2].double}
	for i, to := range []*float64{&res.Bare, &res.Check, &res.Watermill, &res.Inbox, &res.Latest, &res.BareBatch, &res.InboxBatch} {
		*to = round(float64(c.messages*c.rounds) / ways[i].took.Seconds())
		if i != 1 && i != 2 {
			res.Double += ways[i].double
			res.Missing += ways[i].missing
		}
	}
	res.Ratios.OfBare = round(res.Inbox / res.Bare)
	res.Ratios.BatchOfBare = round(res.InboxBatch / res.BareBatch)
	if res.Double+res.Missing > 0 {
		return res, fmt.Errorf("void: %d effects too many, %d missing", res.Double, res.Missing)
	}
	return res, nil
}

// way is one way to consume and what came of it.
type way struct {
	name            string
	run             func(ctx context.Context, run string) (time.Duration, error)
	took            time.Duration
	double, missing int
}

// count asks the table, not the code under test.
func (x *way) count(ctx context.Context, pool *pgxpool.Pool, run string, messages int) error {
	var all, distinct int
	err := pool.QueryRow(ctx, "SELECT count(*), count(DISTINCT id) FROM effect WHERE run = $1", run).Scan(&all, &distinct)
	x.double += all - distinct
	x.missing += messages - distinct
	return err
}

func makeEffects(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `CREATE TABLE effect (run text, id text, payload bytea);
			CREATE TABLE seen (run text, id text)`); err != nil {
			return err
		}
		// No unique key: that is how check-then-act is found in the wild.
		if _, err := tx.Exec(ctx, "CREATE INDEX ON seen (run, id)"); err != nil {
			return err
		}
		return inbox.New(outbox.Postgres, "bench", nil).Migrate(ctx, outbox.Pgx(tx))
	})
}

type consuming struct {
	pool *pgxpool.Pool
	msgs []postrider.Message
}

// bare runs the handler alone, per messages in one transaction, without a broker.
func (w *consuming) bare(per int) func(context.Context, string) (time.Duration, error) {
	return func(ctx context.Context, run string) (time.Duration, error) {
		return w.each(len(w.msgs), per, func(from, to int) error {
			return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
				for i := from; i < to; i++ {
					if _, err := tx.Exec(ctx, insertEffect, run, w.msgs[i].ID, w.msgs[i].Payload); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// twice is how many messages come for one that comes twice.
const twice = 16

// check asks before it acts. Some messages come twice, close together, as after
// a rebalance.
func (w *consuming) check(ctx context.Context, run string) (time.Duration, error) {
	extra := len(w.msgs) / twice
	return w.each(len(w.msgs)+extra, 1, func(i, _ int) error {
		at := i - min(i/(twice+1), extra)
		m := &w.msgs[min(at, len(w.msgs)-1)]
		return w.checkThenAct(ctx, run, m.ID, m.Payload)
	})
}

// checkThenAct is the transaction that many write by hand.
func (w *consuming) checkThenAct(ctx context.Context, run, id string, payload []byte) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		var there bool
		err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM seen WHERE run = $1 AND id = $2)", run, id).Scan(&there)
		if err != nil || there {
			return err
		}
		if _, err := tx.Exec(ctx, insertEffect, run, id, payload); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO seen VALUES ($1, $2)", run, id)
		return err
	})
}

// each calls fn for ranges of n, per long, from consumeWorkers goroutines.
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

// consumer runs Postrider's consumer until everything is settled. The messages
// are there before; every sixteenth comes twice.
func (w *consuming) consumer(batch int, order inbox.Order) func(context.Context, string) (time.Duration, error) {
	return func(ctx context.Context, run string) (time.Duration, error) {
		b := membroker.New(nil)
		all := 0
		for from := 0; from < len(w.msgs); from += twice {
			part := w.msgs[from:min(from+twice, len(w.msgs))]
			for _, msgs := range [][]postrider.Message{part, part[:1]} {
				if errs := b.Sink().Deliver(ctx, msgs); errs != nil {
					return 0, fmt.Errorf("publish: %v", errs[0])
				}
				all += len(msgs)
			}
		}
		c := consumer.New(b.Source(run, "bench"), consumer.Pgx(w.pool), &consumer.Options{
			Name: run, Concurrency: consumeWorkers, Prefetch: 4 * consumeWorkers * batch, Batch: batch,
			Order: func(string) inbox.Order { return order },
		})
		c.HandleMessage("bench.event", func(ctx context.Context, tx pgx.Tx, m postrider.Message) error {
			_, err := tx.Exec(ctx, insertEffect, run, m.ID, m.Payload)
			return err
		})
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		began := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case err := <-ended:
				return 0, fmt.Errorf("the consumer ended: %w", err)
			case <-tick.C:
			}
			if s := c.Stats(); s.Effects+s.Duplicates+s.Stale >= int64(all) {
				took := time.Since(began)
				stop()
				return took, <-ended
			}
		}
	}
}
