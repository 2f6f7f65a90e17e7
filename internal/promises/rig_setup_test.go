package promises

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	_ "modernc.org/sqlite"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
	"github.com/postrider/postrider/store/sqlitestore"
)

// everyVersion runs fn on each tested version of PostgreSQL, in a new database with an
// empty outbox.
func everyVersion(t *testing.T, fn func(t *testing.T, url string)) {
	t.Helper()
	for _, version := range testserver.PostgresVersions() {
		t.Run("postgres"+version, func(t *testing.T) {
			fn(t, postgresDB(t, version))
		})
	}
}

func postgresDB(tb testing.TB, version string) (url string) {
	tb.Helper()
	return testserver.SharedPostgres(tb, version).Copy(tb, "outbox", func(url string) error {
		pool, err := pgxpool.New(context.Background(), url)
		if err != nil {
			return err
		}
		defer pool.Close()
		_, err = pgstore.New(pool, nil).Office().Migrator.Migrate(context.Background(), ops.MigrateRequest{})
		return err
	})
}

func pgxPool(tb testing.TB, url string) *pgxpool.Pool {
	tb.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

func openSQL(tb testing.TB, driver, dsn string) *sql.DB {
	tb.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

// sqlite opens a database file as an application does.
func sqlite(tb testing.TB) (db *sql.DB, file string) {
	tb.Helper()
	file = filepath.Join(tb.TempDir(), "app.db")
	return openSQLite(tb, file), file
}

func openSQLite(tb testing.TB, file string) *sql.DB {
	tb.Helper()
	return openSQL(tb, "sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
}

func sqliteOutbox(tb testing.TB, db *sql.DB) {
	tb.Helper()
	if _, err := sqlitestore.New(db, nil).Office().Migrator.Migrate(context.Background(), ops.MigrateRequest{}); err != nil {
		tb.Fatal(err)
	}
}

// enqueuer runs functions with a transaction of one driver and commits it.
type enqueuer struct {
	name string
	do   func(ctx context.Context, fn func(outbox.Tx) error) error
}

func enqueuers(tb testing.TB, url string) []enqueuer {
	tb.Helper()
	return []enqueuer{
		{"pgx", throughPgx(pgxPool(tb, url))},
		{"pgx simple protocol", throughPgx(pgxPool(tb, url+"&default_query_exec_mode=simple_protocol"))},
		{"pgx exec", throughPgx(pgxPool(tb, url+"&default_query_exec_mode=exec"))},
		{"pgx stdlib", throughSQL(openSQL(tb, "pgx", url))},
		{"lib/pq", throughSQL(openSQL(tb, "postgres", url))},
		{"lib/pq binary", throughSQL(openSQL(tb, "postgres", url+"&binary_parameters=yes"))},
	}
}

func throughPgx(pool *pgxpool.Pool) func(context.Context, func(outbox.Tx) error) error {
	return func(ctx context.Context, fn func(outbox.Tx) error) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return fn(outbox.Pgx(tx)) })
	}
}

func throughSQL(db *sql.DB) func(context.Context, func(outbox.Tx) error) error {
	return func(ctx context.Context, fn func(outbox.Tx) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			return fmt.Errorf("%w (rollback: %v)", err, tx.Rollback())
		}
		return tx.Commit()
	}
}
