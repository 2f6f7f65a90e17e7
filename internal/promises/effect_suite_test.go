package promises

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	sqlitedriver "modernc.org/sqlite"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/inbox/inboxtest"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/internal/testserver"
)

// TestInbox runs the suite of package inbox on every database and driver.
//
// Promises: O, E
func TestInbox(t *testing.T) {
	for _, version := range testserver.NewestPostgres() {
		t.Run("postgres"+version, func(t *testing.T) {
			db := newSuiteDB(t, version)
			t.Run("pgx stdlib", func(t *testing.T) { inboxtest.Run(t, db.stdlib) })
			t.Run("pgx", func(t *testing.T) { inboxtest.Run(t, db.native) })
			t.Run("pq", func(t *testing.T) { inboxtest.Run(t, db.pq) })
		})
	}
	t.Run("sqlite", func(t *testing.T) { inboxtest.Run(t, sqliteEnv) })
}

// suiteDB is a PostgreSQL database with a schema for each Env, and a breakable connection
// to it.
type suiteDB struct {
	direct, line string // URLs
	proxy        *faultproxy.Proxy
	sql          map[string]*sql.DB // by driver
	pool         *pgxpool.Pool
	envs         atomic.Int32
}

func newSuiteDB(t *testing.T, version string) *suiteDB {
	t.Helper()
	d := &suiteDB{direct: testserver.SharedPostgres(t, version).Database(t)}
	u, err := url.Parse(d.direct)
	if err != nil {
		t.Fatal(err)
	}
	if d.proxy, err = faultproxy.New(u.Host); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.proxy.Close() })
	if u.Host = d.proxy.Addr(); net.ParseIP(u.Hostname()) == nil {
		t.Fatalf("the proxy listens on %s", u.Host)
	}
	d.line = u.String()
	d.sql = map[string]*sql.DB{"pgx": openSQL(t, "pgx", d.direct), "postgres": openSQL(t, "postgres", d.direct)}
	d.pool = pgxPool(t, d.direct)
	return d
}

// native returns the database through pgx itself.
func (d *suiteDB) native(t *testing.T) *inboxtest.Env {
	t.Helper()
	e := d.env(t, "pgx", "")
	e.Begin = func(ctx context.Context) (inbox.Conn, error) {
		tx, err := d.pool.Begin(ctx)
		return inbox.Pgx(tx), err
	}
	e.Once = func(ctx context.Context, in *inbox.Inbox, m postrider.Message, fn func(inbox.Conn) error) error {
		return inbox.OncePgx(ctx, in, d.pool, m, func(tx pgx.Tx) error { return fn(inbox.Pgx(tx)) })
	}
	e.OnceBatch = func(ctx context.Context, in *inbox.Inbox, msgs []postrider.Message, fn func(inbox.Conn, []postrider.Message) error) error {
		return inbox.OnceBatchPgx(ctx, in, d.pool, msgs, func(tx pgx.Tx, fresh []postrider.Message) error { return fn(inbox.Pgx(tx), fresh) })
	}
	var mu sync.Mutex
	var conns []*pgx.Conn
	e.Line.Begin = func(ctx context.Context) (inbox.Conn, error) {
		conn, err := pgx.Connect(ctx, d.line+"&default_query_exec_mode=exec")
		if err != nil {
			return nil, err
		}
		mu.Lock()
		conns = append(conns, conn)
		mu.Unlock()
		tx, err := conn.Begin(ctx)
		return inbox.Pgx(tx), err
	}
	e.Line.Restore = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			_ = c.Close(context.Background())
		}
		conns = nil
		d.proxy.Restore()
	}
	return e
}

// stdlib returns the database through pgx's database/sql driver, with one round trip per
// statement, so that a lost reply belongs to the statement.
func (d *suiteDB) stdlib(t *testing.T) *inboxtest.Env {
	t.Helper()
	return d.env(t, "pgx", "&default_query_exec_mode=exec")
}

func (d *suiteDB) pq(t *testing.T) *inboxtest.Env {
	t.Helper()
	return d.env(t, "postgres", "&binary_parameters=yes")
}

// env returns the database through database/sql.
func (d *suiteDB) env(t *testing.T, driver, more string) *inboxtest.Env {
	t.Helper()
	schema := fmt.Sprint("Inbox of env ", d.envs.Add(1))
	e := sqlEnv(t, d.sql[driver], dialect.Postgres, schema, fmt.Sprintf("%q.", schema), "bigserial")
	e.Writers = true
	e.Touched = func(ctx context.Context, fn func(tx inbox.Conn) error) (rows int64, err error) {
		tx, err := e.Begin(ctx)
		if err != nil {
			return 0, err
		}
		defer tx.Rollback()
		// The view also counts earlier transactions of the session until the server adds
		// them to its statistics, once a second.
		read := func() (n int64, err error) {
			err = tx.QueryRow(ctx, `SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables
WHERE schemaname = $1 AND relname = 'inbox_stash'`, schema).Scan(&n)
			return n, err
		}
		before, err := read()
		if err != nil {
			return 0, err
		}
		if err := fn(tx); err != nil {
			return 0, err
		}
		after, err := read()
		return after - before, err
	}
	line := openSQL(t, driver, d.line+more)
	line.SetMaxIdleConns(-1) // a new connection each time, none from before the fault
	e.Line = &inboxtest.Line{
		Begin: func(ctx context.Context) (inbox.Conn, error) {
			tx, err := line.BeginTx(ctx, nil)
			return inbox.SQL(tx), err
		},
		Cut: func() { d.proxy.Cut(0) }, Lose: func() { d.proxy.CutAnswer(1) }, Restore: d.proxy.Restore,
	}
	return e
}

// sqliteEnv returns a database file. The context of a transaction ends it by closing its
// connection.
func sqliteEnv(t *testing.T) *inboxtest.Env {
	t.Helper()
	if err := registerTouched(); err != nil { // before a connection is opened
		t.Fatal(err)
	}
	db, _ := sqlite(t)
	e := sqlEnv(t, db, dialect.SQLite, "", "", "integer")
	const writers = "one writer at a time: the second transaction waits to begin"
	e.Without = map[string]string{"claim/waits": writers, "order/one-at-a-time": writers, "result/busy": writers, "gap/in-hand": writers, "crash/lost-answer": "no network between"}
	e.Touched = func(ctx context.Context, fn func(tx inbox.Conn) error) (int64, error) {
		return touchedSQLite(ctx, e, fn)
	}
	var mu sync.Mutex
	end := func() {}
	e.Line = &inboxtest.Line{
		Begin: func(ctx context.Context) (inbox.Conn, error) {
			ctx, cancel := context.WithCancel(ctx)
			mu.Lock()
			defer mu.Unlock()
			end = cancel
			tx, err := db.BeginTx(ctx, nil)
			return inbox.SQL(tx), err
		},
		Cut:     func() { mu.Lock(); defer mu.Unlock(); end() },
		Restore: func() {},
	}
	return e
}

// touched counts the rows that [touchedSQLite] sees.
var touched atomic.Int64

// registerTouched registers the function once: functions belong to the driver, not to a
// database.
var registerTouched = sync.OnceValue(func() error {
	return sqlitedriver.RegisterFunction("touched", &sqlitedriver.FunctionImpl{Scalar: func(*sqlitedriver.FunctionContext, []driver.Value) (driver.Value, error) {
		touched.Add(1)
		return int64(1), nil
	}})
})

// touchedSQLite replaces the table with a view that counts each row that passes through it.
func touchedSQLite(ctx context.Context, e *inboxtest.Env, fn func(tx inbox.Conn) error) (int64, error) {
	tx, err := e.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	for _, text := range []string{
		"ALTER TABLE postrider_inbox_stash RENAME TO stash_itself",
		"CREATE VIEW postrider_inbox_stash AS SELECT * FROM stash_itself WHERE touched()",
		"CREATE TRIGGER stash_delete INSTEAD OF DELETE ON postrider_inbox_stash BEGIN SELECT 1; END",
	} {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			return 0, err
		}
	}
	before := touched.Load()
	err = fn(tx)
	return touched.Load() - before, err
}

// sqlEnv makes the tables and an Env on database/sql.
func sqlEnv(t *testing.T, db *sql.DB, d dialect.Dialect, schema, prefix, serial string) *inboxtest.Env {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = inboxwork.New(d, "any", &inbox.Options{Schema: schema}).Migrate(t.Context(), tx)
	if err := errors.Join(err, tx.Commit()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("CREATE TABLE " + prefix + "effect (at " + serial + " PRIMARY KEY, name text, n bigint)"); err != nil {
		t.Fatal(err)
	}
	age := "UPDATE " + prefix + "inbox SET processed_at = processed_at - $1 * interval '1 microsecond'"
	if d == dialect.SQLite {
		age = "UPDATE postrider_inbox SET processed_at = processed_at - $1"
	}
	return &inboxtest.Env{
		Dialect: d, Schema: schema, DB: db,
		Begin: func(ctx context.Context) (inbox.Conn, error) {
			tx, err := db.BeginTx(ctx, nil)
			return inbox.SQL(tx), err
		},
		Once: func(ctx context.Context, in *inbox.Inbox, m postrider.Message, fn func(inbox.Conn) error) error {
			return in.Once(ctx, db, m, func(tx *sql.Tx) error { return fn(inbox.SQL(tx)) })
		},
		OnceBatch: func(ctx context.Context, in *inbox.Inbox, msgs []postrider.Message, fn func(inbox.Conn, []postrider.Message) error) error {
			return in.OnceBatch(ctx, db, msgs, func(tx *sql.Tx, fresh []postrider.Message) error { return fn(inbox.SQL(tx), fresh) })
		},
		Act: func(ctx context.Context, tx inbox.Conn, name string, n int64) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO "+prefix+"effect (name, n) VALUES ($1, $2)", name, n)
			return err
		},
		Acts: func(ctx context.Context) ([]string, error) {
			var all sql.NullString
			err := db.QueryRowContext(ctx, "SELECT string_agg(name || ' ' || n, '|') FROM (SELECT name, n FROM "+prefix+"effect ORDER BY at) AS e").Scan(&all)
			if err != nil || !all.Valid {
				return nil, err
			}
			return strings.Split(all.String, "|"), nil
		},
		Age: func(ctx context.Context, d time.Duration) error {
			_, err := db.ExecContext(ctx, age, d.Microseconds())
			return err
		},
	}
}
