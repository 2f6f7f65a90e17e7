package sizing

import (
	"context"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// within fails unless the estimate is at most a fifth away from what was measured.
func within(t *testing.T, what string, estimate, measured int64) {
	t.Helper()
	off := float64(estimate)/float64(measured) - 1
	t.Logf("%-24s estimated %12d  measured %12d  %+.1f %%", what, estimate, measured, 100*off)
	if off < -0.2 || off > 0.2 {
		t.Errorf("%s: the estimate %d is %+.0f %% away from %d", what, estimate, 100*off, measured)
	}
}

// TestEstimateIsMeasured writes three workloads, relays and consumes them, and compares the
// tables with the estimates.
func TestEstimateIsMeasured(t *testing.T) {
	for _, tc := range []struct {
		name     string
		messages int
		Workload
		topic, kind, headers string
	}{
		{"small events", 20_000, Workload{Bytes: 60, Key: 8, Lanes: 64}, "clicks", "click", "{}"},
		{"orders", 10_000, Workload{Bytes: 600, Key: 36, Lanes: 64}, "orders.v1", "order.placed", `{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`},
		{"sealed documents", 3_000, Workload{Bytes: 12_000, Key: 16, Lanes: 4}, "documents", "document.changed", "{}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := tc.Workload
			w.Names, w.Relays, w.Consumers = int64(len(tc.topic)+len(tc.kind)+len("application/json")), 2, 1
			if tc.headers != "{}" {
				w.Headers = int64(len(tc.headers))
			}
			w.Retention, w.Horizon = time.Hour, time.Hour
			w.Rate = float64(tc.messages) / w.Retention.Seconds()
			pool := open(t, testserver.SharedPostgres(t, "15").Database(t))
			if _, err := pgstore.New(pool, nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: int(w.Lanes)}); err != nil {
				t.Fatal(err)
			}
			const lsn = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
			before := number(t, pool, lsn)
			// A hundred messages in a transaction, of random bytes, which do not become shorter.
			const batch = 100
			for from := range tc.messages / batch {
				exec(t, pool, `INSERT INTO postrider.outbox (topic, key, type, content_type, headers, payload)
SELECT $1, lpad((g * 7919 % 5000)::text, $2, 'k'), $3, 'application/json', $4,
  substr((SELECT string_agg(uuid_send(gen_random_uuid()), '') FROM generate_series(0, $5 / 16)), 1, $5)
FROM generate_series($6::int, $7::int) g`, tc.topic, w.Key, tc.kind, tc.headers, int(w.Bytes), from*batch, (from+1)*batch-1)
			}
			carry(t, pool, tc.topic, tc.messages)
			wal := number(t, pool, lsn) - before
			claims := claim(t, pool, tc.topic, tc.kind, tc.messages)

			e := w.Estimate()
			const size = `SELECT pg_table_size('postrider.outbox') - pg_relation_size('postrider.outbox', 'fsm') - pg_relation_size('postrider.outbox', 'vm')`
			rows, indexes := number(t, pool, size), number(t, pool, `SELECT pg_indexes_size('postrider.outbox')`)
			progress := number(t, pool, `SELECT pg_total_relation_size('postrider.progress')`)
			within(t, "rows", e.Rows, rows)
			within(t, "indexes", e.Indexes, indexes)
			within(t, "outbox", e.Outbox-e.Dead, rows+indexes+progress) // nothing was removed yet
			within(t, "inbox", e.InboxMessage*claims, number(t, pool, `SELECT pg_total_relation_size('postrider.inbox')`))
			within(t, "WAL", int64(float64(e.WAL)*w.Retention.Seconds()), wal)
			if e.Progress < progress {
				t.Errorf("progress takes %d bytes, more than %d", progress, e.Progress)
			}
		})
	}
}

func open(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func exec(t *testing.T, pool *pgxpool.Pool, text string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func number(t *testing.T, pool *pgxpool.Pool, text string) (n int64) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), text).Scan(&n); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return n
}

// carry relays everything to a broker in memory.
func carry(t *testing.T, pool *pgxpool.Pool, topic string, messages int) {
	t.Helper()
	bus := membroker.New(nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.New(pgstore.New(pool, nil), bus.Sink(), nil).Run(ctx) }()
	end := time.After(2 * time.Minute)
	for tick := time.Tick(20 * time.Millisecond); bus.Len(topic) < messages; {
		select {
		case <-tick:
		case err := <-done:
			t.Fatalf("the relay ended: %v", err)
		case <-end:
			t.Fatalf("%d of %d messages after two minutes", bus.Len(topic), messages)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// claim processes at most two thousand messages of the outbox, each in a transaction, and returns their number.
func claim(t *testing.T, pool *pgxpool.Pool, topic, kind string, messages int) int64 {
	t.Helper()
	in := inbox.New(dialect.Postgres, "invoices", nil)
	do := func(f func(tx pgx.Tx) error) {
		if err := pgx.BeginFunc(t.Context(), pool, f); err != nil {
			t.Fatal(err)
		}
	}
	do(func(tx pgx.Tx) error { return in.Migrate(t.Context(), outbox.Pgx(tx)) })
	rows, err := pool.Query(t.Context(), `SELECT id::text FROM postrider.outbox ORDER BY seq LIMIT $1`, min(messages, 2_000))
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		do(func(tx pgx.Tx) error {
			_, err := in.Claim(t.Context(), inbox.Pgx(tx), postrider.Message{ID: id, Topic: topic, Type: kind})
			return err
		})
	}
	return int64(len(ids))
}

// TestEstimateGrowsWithTheWorkload finds payloads just below and above the limit of a row,
// and a command line that would be ignored.
func TestEstimateGrowsWithTheWorkload(t *testing.T) {
	w := Workload{Rate: 100, Key: 16, Names: 40, Retention: time.Hour, Horizon: time.Hour, Lanes: 64, Consumers: 1, Relays: 2}
	last := int64(0)
	for _, bytes := range []int64{1, 100, 127, 500, 1500, 2500, 5000, 50_000, 1 << 20, 16 << 20} {
		w.Bytes = bytes
		e := w.Estimate()
		if least := e.Messages * bytes; e.Rows < least || e.Rows < last || e.Rows > 4*least && bytes >= 500 {
			t.Errorf("%d bytes: rows take %d, payloads alone %d", bytes, e.Rows, least)
		}
		last = e.Rows
	}
	for args, want := range map[string]string{
		"":                                   "rate is 0",
		"--rate 1":                           "bytes is 0",
		"--rate -1 --bytes 1":                "rate is -1",
		"--rate NaN --bytes 1":               "rate is NaN",
		"--rate 1 --bytes 1 --lanes 0":       "lanes is 0",
		"--rate 1 --bytes 1 more":            `flags only, not "more"`,
		"--rate 1 --bytes 1 --retention=-1h": "retention is -1h0m0s: use 0s to 87600h0m0s",
		"--rate 1 --bytes 1 --horizon=-1h":   "horizon is -1h0m0s: use 0s to 87600h0m0s",
	} {
		cmd := Command(func(any, func(*tabwriter.Writer)) error { return nil })
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("size %s: %v, want %s", args, err, want)
		}
	}
}
