package mysqlstore

import (
	"context"
	"database/sql"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/storetest"
)

// onEach runs a test on every server that this run has.
func onEach(t *testing.T, test func(t *testing.T, server *testserver.MySQL)) {
	t.Helper()
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) { test(t, testserver.SharedMySQL(t, version)) })
	}
}

func versions() []string {
	if one := os.Getenv("POSTRIDER_MYSQL"); one != "" {
		return []string{one}
	}
	return testserver.MySQLVersions()
}

// newDB returns a pool for an empty database.
func newDB(t *testing.T, server *testserver.MySQL) *sql.DB {
	t.Helper()
	return pool(t, server.Database(t))
}

func pool(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := OpenDB(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// newOutbox returns a pool for a database with an outbox.
func newOutbox(t *testing.T, server *testserver.MySQL, lanes int) *sql.DB {
	t.Helper()
	db := newDB(t, server)
	if _, err := New(db, nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: lanes}); err != nil {
		t.Fatal(err)
	}
	return db
}

const testLanes = 4

type env struct {
	db     *sql.DB
	listed string // in docs/conformance.md
}

// listedAs is a version as people write it.
func listedAs(version string) string {
	return strings.NewReplacer("mariadb-", "MariaDB ", "mysql-", "MySQL ").Replace(version)
}

func (e *env) open() *Store        { return New(e.db, &Options{MakePipe: true}) }
func (e *env) Store() store.Store  { return e.open() }
func (e *env) Office() *ops.Office { return e.open().Office() }

func (e *env) Begin(ctx context.Context) (storetest.Tx, error) {
	tx, err := e.db.BeginTx(ctx, nil)
	return writer{tx}, err
}

// Advance waits: the clock is the server's.
func (e *env) Advance(ctx context.Context, d time.Duration) error {
	end := time.NewTimer(d)
	defer end.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-end.C:
		return nil
	}
}

// setBack moves what was parked ahead, which is the same.
func (e *env) setBack(ctx context.Context, d time.Duration) error {
	us := d.Microseconds()
	_, err := e.db.ExecContext(ctx, `UPDATE postrider_parked SET due_at = due_at + ?, first_failed = first_failed + ?, last_attempt = last_attempt + ?`, us, us, us)
	return err
}

func (e *env) Features() storetest.Features {
	return storetest.Features{
		Database: e.listed, Lanes: testLanes, Tick: 300 * time.Millisecond, ConcurrentWriters: true, BackdatedWriters: true, SetBack: e.setBack, View: e.view, SentTimes: true, LateSentTimes: true,
	}
}

type writer struct{ tx *sql.Tx }

func (w writer) Enqueue(ctx context.Context, msgs ...postrider.Message) error {
	return outbox.New(dialect.MySQL, nil).Enqueue(ctx, w.tx, msgs...)
}
func (w writer) Commit(context.Context) error   { return w.tx.Commit() }
func (w writer) Rollback(context.Context) error { return w.tx.Rollback() }

// Promises: L
func TestConformance(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		storetest.Run(t, func(t *testing.T) storetest.Env {
			t.Helper()
			return &env{db: newOutbox(t, server, testLanes), listed: listedAs(server.Version)}
		})
	})
}

func TestMigrator(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		storetest.RunMigrator(t, func(t *testing.T) *ops.Office {
			t.Helper()
			return New(newDB(t, server), nil).Office()
		})
	})
}
