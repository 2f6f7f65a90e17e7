package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/proc"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/outbox"
)

// consumeResult is the JSON object of the consume workload: several ways to run a handler
// that inserts one row, over all rounds.
type consumeResult struct {
	Workload   string   `json:"workload"`
	Bare       *wayCost `json:"bare"`           // only the handler's transaction
	Inbox      *wayCost `json:"inbox"`          // the consumer
	Latest     *wayCost `json:"latest"`         // the same with an order
	Check      *wayCost `json:"check_then_act"` // SELECT whether the id is known, then act
	Watermill  *wayCost `json:"watermill"`      // the same in a Watermill router
	BareBatch  *wayCost `json:"bare_batch"`     // the handler, a hundred times per transaction
	InboxBatch *wayCost `json:"inbox_batch"`    // the consumer with Batch: 100
	Ratios     struct {
		OfBare      float64 `json:"of_bare"`
		BatchOfBare float64 `json:"batch_of_bare_batch"`
	} `json:"ratios"`
}

// wayCost is the cost of one way to consume. One message in 16 is delivered twice, except
// to the bare handler, which cannot detect duplicates.
type wayCost struct {
	PerSecond float64 `json:"per_s"`
	ClientCPU float64 `json:"client_cpu_us"` // per effect, including the start of the process
	ServerCPU float64 `json:"server_cpu_us"`
	WAL       float64 `json:"wal_bytes"`
	RSS       float64 `json:"rss_mib"` // the client's peak
	Double    int     `json:"double"`  // second effects of a message
	Missing   int     `json:"missing"`

	name     string
	messages int // per round
	effects  int
	took     time.Duration
	client   time.Duration
	server   time.Duration
	wal      int64
}

const (
	// consumeMessages is the default number of messages of a round with batches. Without
	// batches, which takes longer, a round has a tenth of it.
	consumeMessages = 80_000
	consumeSingly   = 10
)

// runConsume handles the same messages in each way in turn.
func runConsume(ctx context.Context, c config) (*consumeResult, error) {
	pg, err := testserver.LaunchPostgres(ctx, c.postgres, "", testserver.Durable(), testserver.Throughput())
	if err != nil {
		return nil, err
	}
	defer pg.Close()
	pool, err := newOutbox(ctx, pg.URL, "poll")
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
	res.Ratios.OfBare = figures.Round(res.Inbox.PerSecond / res.Bare.PerSecond)
	res.Ratios.BatchOfBare = figures.Round(res.InboxBatch.PerSecond / res.BareBatch.PerSecond)
	for _, w := range []*wayCost{res.Bare, res.Inbox, res.Latest, res.BareBatch, res.InboxBatch} {
		if w.Double+w.Missing > 0 {
			return res, fmt.Errorf("result discarded: %s has %d extra and %d missing effects", w.name, w.Double, w.Missing)
		}
	}
	return res, nil
}

// run handles the messages of one round in a separate process.
func (w *wayCost) run(ctx context.Context, pg *testserver.Postgres, pool *pgxpool.Pool, round int) error {
	run := w.name + strconv.Itoa(round)
	before, err := readTableStats(ctx, pool)
	if err != nil {
		return err
	}
	began, err := proc.TreeCPU(pg.PID)
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
	ended, err := proc.TreeCPU(pg.PID)
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
	say("%s: %.0f/s", run, figures.Rate(w.messages, u.took))
	return w.count(ctx, pool, run)
}

// count counts in the table, independently of the code under test.
func (w *wayCost) count(ctx context.Context, pool *pgxpool.Pool, run string) error {
	var all, distinct int
	err := pool.QueryRow(ctx, "SELECT count(*), count(DISTINCT id) FROM effect WHERE run = $1", run).Scan(&all, &distinct)
	w.Double += all - distinct
	w.Missing += w.messages - distinct
	return err
}

func (w *wayCost) sum() {
	w.PerSecond = figures.Rate(w.effects, w.took)
	w.ClientCPU, w.ServerCPU = figures.PerMillion(w.client, w.effects), figures.PerMillion(w.server, w.effects) // s per million = us per effect
	w.WAL = figures.Round(float64(w.wal) / float64(w.effects))
	say("%s", w)
}

func (w *wayCost) String() string {
	return fmt.Sprintf("%-10s %6.0f/s  per effect: client %4.0f us, server %4.0f us, WAL %4.0f bytes  client's peak %3.0f MiB  %d double, %d missing",
		w.name, w.PerSecond, w.ClientCPU, w.ServerCPU, w.WAL, w.RSS, w.Double, w.Missing)
}

func makeEffects(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `CREATE TABLE effect (run text, id text, payload bytea);
			CREATE TABLE seen (run text, id text)`); err != nil {
			return err
		}
		// No unique key, as usual for check-then-act in the field.
		if _, err := tx.Exec(ctx, "CREATE INDEX ON seen (run, id)"); err != nil {
			return err
		}
		return inbox.New(dialect.Postgres, "bench", nil).Migrate(ctx, outbox.Pgx(tx))
	})
}
