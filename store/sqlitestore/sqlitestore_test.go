package sqlitestore

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/storetest"
)

func openFile(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := OpenDB(path)
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

func newOutbox(t *testing.T, lanes int) (*sql.DB, *Store) {
	t.Helper()
	db := openFile(t, filepath.Join(t.TempDir(), "shop.db"))
	s := New(db, nil)
	if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: lanes}); err != nil {
		t.Fatal(err)
	}
	return db, s
}

const testLanes = 4

// env is a database file whose clock can be moved on.
type env struct {
	db    *sql.DB
	moved atomic.Int64
}

func (e *env) open() *Store {
	s := New(e.db, &Options{MakePipe: true})
	s.box.Now = func() time.Time { return time.Now().Add(time.Duration(e.moved.Load())) }
	return s
}

func (e *env) Store() store.Store  { return e.open() }
func (e *env) Office() *ops.Office { return e.open().Office() }

func (e *env) Begin(ctx context.Context) (storetest.Tx, error) {
	tx, err := e.db.BeginTx(ctx, nil)
	return writer{tx}, err
}

func (e *env) Advance(_ context.Context, d time.Duration) error {
	e.moved.Add(int64(d))
	return nil
}

func (e *env) setBack(ctx context.Context, d time.Duration) error { return e.Advance(ctx, -d) }

func (e *env) Features() storetest.Features {
	return storetest.Features{Database: "SQLite", Lanes: testLanes, Tick: 10 * time.Second, SetBack: e.setBack, View: e.view, SentTimes: true}
}

type writer struct{ tx *sql.Tx }

func (w writer) Enqueue(ctx context.Context, msgs ...postrider.Message) error {
	return outbox.New(dialect.SQLite, nil).Enqueue(ctx, w.tx, msgs...)
}
func (w writer) Commit(context.Context) error   { return w.tx.Commit() }
func (w writer) Rollback(context.Context) error { return w.tx.Rollback() }

// Promises: L
func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Env {
		t.Helper()
		db, _ := newOutbox(t, testLanes)
		return &env{db: db}
	})
}

func TestMigrator(t *testing.T) {
	storetest.RunMigrator(t, func(t *testing.T) *ops.Office {
		t.Helper()
		return New(openFile(t, filepath.Join(t.TempDir(), "shop.db")), nil).Office()
	})
}
