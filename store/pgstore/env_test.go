package pgstore_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
	"github.com/postrider/postrider/store/storetest"
)

// TestMain lets four tests run side by side unless -parallel has another number: most of
// a test's time is waiting for a server, a lease or a limit.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", "4"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// onEach runs a test on every server version asked for. The versions run side by side,
// and no other test of these servers does.
func onEach(t *testing.T, run func(t *testing.T, version string)) {
	t.Helper()
	for _, v := range testserver.PostgresVersions() {
		t.Run("pg"+v, func(t *testing.T) {
			t.Parallel()
			run(t, v)
		})
	}
}

// onOwn is onEach for a test that starts all its servers itself: it runs beside others
// of its kind.
func onOwn(t *testing.T, run func(t *testing.T, version string)) {
	t.Helper()
	t.Parallel()
	onEach(t, run)
}

// db is one outbox in a schema of its own.
type db struct {
	*testing.T
	pool   *pgxpool.Pool
	schema string
	lanes  int
}

var schemas atomic.Int64

func newPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool := openPool(t, url)
	t.Cleanup(pool.Close)
	return pool
}

func openPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 40
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// empty is a schema that nobody has made yet.
func empty(t *testing.T, version string, lanes int) *db {
	t.Helper()
	pg := testserver.SharedPostgres(t, version)
	d := &db{T: t, pool: newPool(t, pg.URL), schema: fmt.Sprintf("Box_%d", schemas.Add(1)), lanes: lanes}
	t.Cleanup(func() {
		if _, err := d.pool.Exec(context.Background(), `DROP SCHEMA IF EXISTS "`+d.schema+`" CASCADE`); err != nil {
			t.Errorf("drop schema: %v", err)
		}
	})
	return d
}

func fresh(t *testing.T, version string, lanes int) *db {
	t.Helper()
	return originalOf(version, lanes, false).copy(t)
}

// originalOf returns the outbox that tests of a version copy.
func originalOf(version string, lanes int, partitions bool) original {
	return original{
		version: version, kind: fmt.Sprintf("%d_%t", lanes, partitions), lanes: lanes,
		fill: func(d *db) error { return d.migrate(partitions) },
	}
}

func (d *db) migrate(partitions bool) error {
	steps, err := d.store("main").Office().Migrator.Migrate(d.Context(), ops.MigrateRequest{Lanes: d.lanes, Partition: partitions})
	if err != nil {
		return err
	}
	if last := steps[len(steps)-1]; partitions && last.Name != "partition" {
		return fmt.Errorf("the last step is %q", last.Name)
	}
	return nil
}

// original is an outbox that is made once, in a database of its own: see [testserver.Postgres.Copy].
type original struct {
	version string
	kind    string // and the end of its schema's name
	lanes   int
	fill    func(d *db) error
}

func (o original) copy(t *testing.T) *db {
	t.Helper()
	d := db{T: t, schema: "Copy_" + o.kind, lanes: o.lanes}
	url := testserver.SharedPostgres(t, o.version).Copy(t, d.schema, func(url string) error {
		first := d
		first.pool = openPool(t, url)
		defer first.pool.Close() // PostgreSQL copies no database that somebody uses
		return o.fill(&first)
	})
	d.pool = newPool(t, url)
	return &d
}

func (d *db) store(pipe string) *pgstore.Store {
	return pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, Pipe: pipe, Lanes: d.lanes, MakePipe: true})
}

// sql puts the schema's name in place of "box.".
func (d *db) sql(text string) string { return strings.ReplaceAll(text, "box.", `"`+d.schema+`".`) }

func (d *db) exec(text string, args ...any) {
	d.Helper()
	if _, err := d.pool.Exec(d.Context(), d.sql(text), args...); err != nil {
		d.Fatalf("%s: %v", text, err)
	}
}

func (d *db) begin() pgx.Tx {
	d.Helper()
	tx, err := d.pool.Begin(d.Context())
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // already ended in most tests
	return tx
}

func (d *db) do(tx pgx.Tx, text string, args ...any) {
	d.Helper()
	if _, err := tx.Exec(d.Context(), d.sql(text), args...); err != nil {
		d.Fatalf("%s: %v", text, err)
	}
}

// put inserts a message of key k whose type is its label.
func (d *db) put(tx pgx.Tx, label string) {
	d.Helper()
	d.do(tx, `INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, label)
}

func (d *db) commit(tx pgx.Tx) {
	d.Helper()
	if err := tx.Commit(d.Context()); err != nil {
		d.Fatal(err)
	}
}

// env adapts a db to the conformance suite.
type env struct{ *db }

func (e env) Store() store.Store  { return e.db.store("main") }
func (e env) Office() *ops.Office { return e.db.store("main").Office() }
func (e env) Features() storetest.Features {
	return storetest.Features{Lanes: e.lanes, Tick: 500 * time.Millisecond, ConcurrentWriters: true, BackdatedWriters: true, SetBack: e.setBack, View: e.messages, SentTimes: true}
}

func (e env) messages(ctx context.Context) ([]ops.ViewRow, error) {
	rows, err := e.pool.Query(ctx, `SELECT `+strings.Replace(ops.ViewColumns, " id,", " id::text,", 1)+` FROM "`+e.schema+`".messages WHERE pipe = 'main' ORDER BY seq`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r ops.ViewRow, err error) {
		var parked, waits, class, code, text, owner *string
		var attempts, generation *int
		var at [7]*time.Time
		err = row.Scan(&r.Pipe, &r.Lane, &r.Seq, &r.ID, &r.Topic, &r.Key, &r.Type, &r.Version, &r.State, &parked, &waits, &at[0], &at[1], &at[2],
			&attempts, &at[3], &at[4], &at[5], &class, &code, &text, &owner, &at[6], &generation, &r.ContentType, &r.SchemaVersion, &r.Headers, &r.PayloadBytes)
		if r.Attempts = -1; attempts != nil {
			r.Attempts = *attempts
		}
		if generation != nil {
			r.Generation = *generation
		}
		for to, from := range map[*string]*string{&r.Parked: parked, &r.WaitsFor: waits, &r.ErrorClass: class, &r.ErrorCode: code, &r.Error: text, &r.LockOwner: owner} {
			if from != nil {
				*to = *from
			}
		}
		for i, to := range []*time.Time{&r.CreatedAt, &r.NotBefore, &r.SentAt, &r.FirstFailed, &r.LastAttempt, &r.NextAttempt, &r.LockedUntil} {
			if at[i] != nil {
				*to = at[i].UTC()
			}
		}
		return r, err
	})
}

// setBack moves the times of parked records ahead, as a corrected clock does.
func (e env) setBack(ctx context.Context, d time.Duration) error {
	_, err := e.pool.Exec(ctx, `UPDATE "`+e.schema+`".parked SET due_at = due_at + $1::float8 * interval '1 second', last_attempt = last_attempt + $1::float8 * interval '1 second',
 parked_at = parked_at + $1::float8 * interval '1 second'`, d.Seconds())
	return err
}

// Advance waits by the database's clock.
func (e env) Advance(ctx context.Context, d time.Duration) error {
	_, err := e.pool.Exec(ctx, `SELECT pg_sleep($1)`, d.Seconds())
	return err
}

func (e env) Begin(ctx context.Context) (storetest.Tx, error) {
	tx, err := e.pool.Begin(ctx)
	return &writer{Tx: tx, db: e.db}, err
}

type writer struct {
	pgx.Tx
	db *db
}

func (w *writer) Enqueue(ctx context.Context, msgs ...postrider.Message) error {
	for _, m := range msgs {
		headers, err := json.Marshal(m.Headers)
		if err != nil {
			return err
		}
		if m.Headers == nil {
			headers = []byte("{}")
		}
		var id, notBefore any
		if m.ID != "" {
			id = m.ID
		}
		if !m.NotBefore.IsZero() {
			notBefore = m.NotBefore
		}
		payload := m.Payload
		if payload == nil {
			payload = []byte{}
		}
		_, err = w.Exec(ctx, w.db.sql(`INSERT INTO box.outbox (id, topic, key, type, payload, content_type, headers, version, schema_version, not_before)
			VALUES (coalesce($1::uuid, box.uuid_v7()), $2, $3, $4, $5, $6, $7, $8, $9, $10)`),
			id, m.Topic, m.Key, m.Type, payload, m.ContentType, string(headers), m.Version, m.SchemaVersion, notBefore)
		if err != nil {
			return err
		}
	}
	return nil
}

func TestMigrator(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		storetest.RunMigrator(t, func(t *testing.T) *ops.Office { return empty(t, version, 4).store("main").Office() })
	})
}
