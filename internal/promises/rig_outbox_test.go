package promises

import (
	"context"
	"crypto/rand"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

const (
	lanes = 8
	// window is small, so that a broken bound on duplicates is visible.
	window = 64
	// manyKeys is the default number of a rig's keys.
	manyKeys = 24
)

// onEach runs a test on the newest server, and on the oldest too in the matrix.
func onEach(t *testing.T, run func(t *testing.T, version string)) {
	t.Helper()
	for _, v := range testserver.NewestPostgres() {
		t.Run("postgres"+v, func(t *testing.T) { run(t, v) })
	}
}

// scale returns the factor of bulk loads: above 1 in the matrix.
func scale() int {
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		return 10
	}
	return 1
}

// rig has one outbox, its writers and the log lines of relays.
type rig struct {
	*testing.T
	topic string // unique, so that tests can share brokers
	keys  int    // of the writers
	url   string
	pool  *pgxpool.Pool // of the writers and of the test
	dials atomic.Int64  // of the relays
	said  *lines
	// waited returns the time for which the machine was starved until now.
	waited func() time.Duration
}

// newRig makes an outbox in a database of a shared server.
func newRig(t *testing.T, version string) *rig {
	t.Helper()
	return rigIn(t, testserver.SharedPostgres(t, version).Copy(t, "rig", prepare))
}

// rigOn makes an outbox in an empty database.
func rigOn(t *testing.T, url string) *rig {
	t.Helper()
	if err := prepare(url); err != nil {
		t.Fatal(err)
	}
	return rigIn(t, url)
}

// prepare fills a rig's database.
func prepare(url string) error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pgstore.New(pool, nil).Office().Migrator.Migrate(ctx, ops.MigrateRequest{Lanes: lanes}); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE truth (key text PRIMARY KEY, version bigint NOT NULL DEFAULT 0)`); err != nil {
		return err
	}
	_, err = pool.Exec(ctx, `INSERT INTO truth SELECT 'k' || g FROM generate_series(0, $1::int - 1) g`, manyKeys)
	return err
}

func rigIn(t *testing.T, url string) *rig {
	t.Helper()
	r := &rig{T: t, url: url, keys: manyKeys, topic: "promise-" + strings.ToLower(rand.Text()[:10]), said: &lines{}}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	// The writers continue when the server is read-only for the relays.
	cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "off"
	cfg.MaxConns = 12
	if r.pool, err = pgxpool.NewWithConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.pool.Close)
	r.waited = r.meter()
	return r
}

func (r *rig) exec(sql string, args ...any) {
	r.Helper()
	if _, err := r.pool.Exec(r.Context(), sql, args...); err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
}

// number returns the only value of a query.
func (r *rig) number(sql string, args ...any) (n int64) {
	r.Helper()
	if err := r.pool.QueryRow(r.Context(), sql, args...).Scan(&n); err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
	return n
}

// until polls a condition. On an idle machine the condition becomes true within a fraction
// of limit. For slow and shared machines until waits several times as long, which only
// delays the report of a hang.
func (r *rig) until(limit time.Duration, what string, done func() bool) {
	r.Helper()
	const slow = 5
	end := time.Now().Add(slow * limit)
	for !done() {
		if time.Now().After(end) {
			r.Fatalf("not within %v: %s\nlogs of the relays:\n%s", slow*limit, what, r.said)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// put writes one message with the next version of its key in tx.
func (r *rig) put(ctx context.Context, tx pgx.Tx, key string) error {
	_, err := tx.Exec(ctx, `WITH v AS (UPDATE truth SET version = version + 1 WHERE key = $2 RETURNING version)
		INSERT INTO postrider.outbox (topic, key, type, payload, version)
		SELECT $1, $2, 'event', convert_to($2 || ':' || version, 'UTF8'), version FROM v`, r.topic, key)
	return err
}

// write commits n messages, one transaction each, over all keys.
func (r *rig) write(n int) {
	r.Helper()
	for i := range n {
		err := pgx.BeginFunc(r.Context(), r.pool, func(tx pgx.Tx) error {
			return r.put(r.Context(), tx, "k"+strconv.Itoa(i%r.keys))
		})
		if err != nil {
			r.Fatalf("write: %v", err)
		}
	}
}

// bulk commits n messages of every key in one statement.
func (r *rig) bulk(n int) {
	r.Helper()
	r.exec(`WITH o AS (SELECT key, version FROM truth), u AS (UPDATE truth SET version = version + $2)
		INSERT INTO postrider.outbox (topic, key, type, payload, version)
		SELECT $1, key, 'event', convert_to(key || ':' || version + i, 'UTF8'), version + i
		FROM generate_series(1, $2::int) i, o ORDER BY i, key`, r.topic, n)
}

// writeOn writes until the returned function is called, which waits for the writers.
// Errors are not fatal: the server may be down.
func (r *rig) writeOn(writers int) (stop func()) {
	ctx, cancel := context.WithCancel(r.Context())
	ended := make(chan struct{})
	for w := range writers {
		go func() {
			defer func() { ended <- struct{}{} }()
			for i := w; ctx.Err() == nil; i++ {
				_ = pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error { // the table truth records committed versions
					if err := r.put(ctx, tx, "k"+strconv.Itoa(i*7%r.keys)); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, `SELECT pg_sleep(0.005)`)
					return err
				})
			}
		}()
	}
	return func() {
		cancel()
		for range writers {
			<-ended
		}
	}
}

func (r *rig) options() *relay.Options {
	return &relay.Options{
		Window: window, Page: window / 2, Logger: r.said.logger(),
		OutageMax: 500 * time.Millisecond, DeliverTimeout: 5 * time.Second,
	}
}

// relayPool returns a pool as in an application, whose dials are counted.
func (r *rig) relayPool() *pgxpool.Pool {
	r.Helper()
	cfg, err := pgxpool.ParseConfig(r.url)
	if err != nil {
		r.Fatal(err)
	}
	cfg.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { r.dials.Add(1); return nil }
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(pool.Close)
	return pool
}

// relay runs an embedded relay until the test ends or stop is called. The test fails
// unless Run then drains and returns nil.
func (r *rig) relay(sink broker.Sink, opts *relay.Options) (re *relay.Relay, stop func()) {
	r.Helper()
	if opts == nil {
		opts = r.options()
	}
	re = relay.New(pgstore.New(r.relayPool(), nil), sink, opts)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- re.Run(ctx) }()
	stopped := false
	stop = func() {
		r.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				r.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			r.Errorf("Run did not return within a minute of its context's end")
		}
	}
	r.Cleanup(stop)
	return re, stop
}

// drained waits until nothing is pending.
func (r *rig) drained(limit time.Duration) {
	r.Helper()
	st := pgstore.New(r.pool, nil)
	r.until(limit, "nothing pending", func() bool {
		s, err := st.Office().Admin.Status(r.Context())
		return err == nil && s.Pending == 0
	})
}

// nothingParked checks that no message has used an attempt: a failed message is parked.
func (r *rig) nothingParked() {
	r.Helper()
	if n := r.number(`SELECT count(*) FROM postrider.parked`); n != 0 {
		r.Errorf("%d records are parked, want none", n)
	}
}

// check compares the arrived messages with the committed rows: none lost, none
// uncommitted, no step ahead in any key. It returns the duplicates.
func (r *rig) check(arrived []string) (duplicates int) {
	r.Helper()
	rows, err := r.pool.Query(r.Context(), `SELECT key, max(version), count(*) FROM postrider.outbox GROUP BY key`)
	if err != nil {
		r.Fatal(err)
	}
	truth, total := map[string]int64{}, int64(0)
	var (
		key       string
		top, rowN int64
	)
	if _, err := pgx.ForEachRow(rows, []any{&key, &top, &rowN}, func() error {
		if top != rowN {
			r.Fatalf("the test's own numbers have a gap: key %s, %d rows up to %d", key, rowN, top)
		}
		truth[key] = top
		total += top
		return nil
	}); err != nil {
		r.Fatal(err)
	}
	seen := map[string]int64{}
	for i, payload := range arrived {
		k, num, _ := strings.Cut(payload, ":")
		v, err := strconv.ParseInt(num, 10, 64)
		switch {
		case err != nil:
			r.Fatalf("message %d is not of this test", i)
		case v > truth[k]:
			r.Errorf("phantom: %s version %d, only %d committed", k, v, truth[k])
		case v > seen[k]+1:
			r.Errorf("out of order: %s version %d after %d", k, v, seen[k])
		case v <= seen[k]:
			duplicates++
		default:
			seen[k] = v
		}
	}
	for k, v := range truth {
		if seen[k] != v {
			r.Errorf("lost: %s has %d committed, %d arrived in order", k, v, seen[k])
		}
	}
	r.Logf("%d committed, %d arrived, %d duplicates", total, len(arrived), duplicates)
	return duplicates
}

// atMost checks a bound on duplicates: a window per lane and incident, including the
// incidents that a starved machine causes.
func (r *rig) atMost(duplicates, incidents int) {
	r.Helper()
	incidents += r.lapses()
	if bound := incidents * lanes * window; duplicates > bound {
		r.Errorf("%d duplicates, want at most %d for %d incidents", duplicates, bound, incidents)
	}
}
