package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/outbox"
)

// consumeResult is the JSON object of the consume workload: a handler that
// inserts one row, in several ways, all rounds together.
type consumeResult struct {
	Workload   string   `json:"workload"`
	Bare       *wayCost `json:"bare"`           // the handler's transaction and nothing else
	Inbox      *wayCost `json:"inbox"`          // the consumer
	Latest     *wayCost `json:"latest"`         // the same with an order
	Check      *wayCost `json:"check_then_act"` // SELECT whether it was there, then act
	Watermill  *wayCost `json:"watermill"`      // the same in a Watermill router
	BareBatch  *wayCost `json:"bare_batch"`     // the handler a hundred times in a transaction
	InboxBatch *wayCost `json:"inbox_batch"`    // the consumer with Batch: 100
	Ratios     struct {
		OfBare      float64 `json:"of_bare"`
		BatchOfBare float64 `json:"batch_of_bare_batch"`
	} `json:"ratios"`
}

// wayCost is what came of one way to consume. Of 16 messages one comes twice, but
// not to the bare handler, which has no answer to that.
type wayCost struct {
	PerSecond float64 `json:"per_s"`
	ClientCPU float64 `json:"client_cpu_us"` // of one effect; the start of its process included
	ServerCPU float64 `json:"server_cpu_us"`
	WAL       float64 `json:"wal_bytes"`
	RSS       float64 `json:"rss_mib"` // of the client, the most at any time
	Double    int     `json:"double"`  // effects beyond one per message
	Missing   int     `json:"missing"`

	name     string
	messages int // of a round
	effects  int
	took     time.Duration
	client   time.Duration
	server   time.Duration
	wal      int64
}

const (
	// consumeMessages is how many a round has by default where they come in
	// batches; singly a tenth of it, which takes longer.
	consumeMessages = 80_000
	consumeSingly   = 10
)

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
	many, few := c.messages, max(c.messages/consumeSingly, 1)
	res := &consumeResult{
		Workload: "consume",
		Bare:     &wayCost{name: "bare", messages: few}, Inbox: &wayCost{name: "inbox", messages: few},
		Latest: &wayCost{name: "latest", messages: few}, Check: &wayCost{name: "check", messages: few},
		Watermill: &wayCost{name: "watermill", messages: few},
		BareBatch: &wayCost{name: "barebatch", messages: many}, InboxBatch: &wayCost{name: "inboxbatch", messages: many},
	}
	ways := []*wayCost{res.Bare, res.Inbox, res.Latest, res.Check, res.Watermill, res.BareBatch, res.InboxBatch}
	for round := range c.rounds {
		for _, w := range ways {
			if err := w.run(ctx, pg, pool, round); err != nil {
				return nil, err
			}
		}
	}
	for _, w := range ways {
		w.sum()
	}
	res.Ratios.OfBare = round(res.Inbox.PerSecond / res.Bare.PerSecond)
	res.Ratios.BatchOfBare = round(res.InboxBatch.PerSecond / res.BareBatch.PerSecond)
	for _, w := range []*wayCost{res.Bare, res.Inbox, res.Latest, res.BareBatch, res.InboxBatch} {
		if w.Double+w.Missing > 0 {
			return res, fmt.Errorf("void: %s has %d effects too many, %d are missing", w.name, w.Double, w.Missing)
		}
	}
	return res, nil
}

// run handles the messages of one round in a process of its own.
func (w *wayCost) run(ctx context.Context, pg *testserver.Postgres, pool *pgxpool.Pool, round int) error {
	run := w.name + strconv.Itoa(round)
	before, err := readTableStats(ctx, pool)
	if err != nil {
		return err
	}
	began, err := treeCPU(pg.PID)
	if err != nil {
		return err
	}
	ch, err := startChild(ctx, "consume", pg.URL, w.name, run, strconv.Itoa(w.messages))
	if err != nil {
		return err
	}
	u, err := ch.finish()
	if err != nil {
		return fmt.Errorf("%s: %w", run, err)
	}
	ended, err := treeCPU(pg.PID)
	if err != nil {
		return err
	}
	wal, err := walSince(ctx, pool, before)
	if err != nil {
		return err
	}
	w.took, w.client, w.server, w.wal = w.took+u.took, w.client+u.cpu, w.server+ended-began, w.wal+wal
	w.effects += w.messages
	w.RSS = max(w.RSS, u.rss)
	say("%s: %.0f/s", run, rate(w.messages, u.took))
	return w.count(ctx, pool, run)
}

// count asks the table, not the code under test.
func (w *wayCost) count(ctx context.Context, pool *pgxpool.Pool, run string) error {
	var all, distinct int
	err := pool.QueryRow(ctx, "SELECT count(*), count(DISTINCT id) FROM effect WHERE run = $1", run).Scan(&all, &distinct)
	w.Double += all - distinct
	w.Missing += w.messages - distinct
	return err
}

func (w *wayCost) sum() {
	w.PerSecond = rate(w.effects, w.took)
	w.ClientCPU, w.ServerCPU = perMillion(w.client, w.effects), perMillion(w.server, w.effects) // s of a million are us of one
	w.WAL = round(float64(w.wal) / float64(w.effects))
	say("%s", w)
}

func (w *wayCost) String() string {
	return fmt.Sprintf("%-10s %6.0f/s  of one effect: client %4.0f us, server %4.0f us, WAL %4.0f bytes  client's memory %3.0f MiB  %d double, %d missing",
		w.name, w.PerSecond, w.ClientCPU, w.ServerCPU, w.WAL, w.RSS, w.Double, w.Missing)
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
		return inbox.New(dialect.Postgres, "bench", nil).Migrate(ctx, outbox.Pgx(tx))
	})
}
