package storetest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/storetest"
)

const lanes = 4

// memEnv is a database in memory with a clock that only Advance moves.
type memEnv struct {
	db     *memstore.Store
	wrap   func(*memstore.Store) store.Store // nil: as it is
	office func(*ops.Office)                 // changes the office; nil: as it is
	mu     sync.Mutex
	now    time.Time
}

func newMemEnv(family memstore.Family, defect memstore.Defect) *memEnv {
	e := &memEnv{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	e.db = memstore.New(&memstore.Options{Lanes: lanes, Family: family, Defect: defect, Now: e.clock})
	return e
}

func (e *memEnv) clock() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now
}

func (e *memEnv) Store() store.Store {
	handle := e.db.Pipe(memstore.DefaultPipe)
	if e.wrap != nil {
		return e.wrap(handle)
	}
	return handle
}

func (e *memEnv) Office() *ops.Office {
	office := e.db.Pipe(memstore.DefaultPipe).Office()
	if e.office != nil {
		e.office(office)
	}
	return office
}

func (e *memEnv) Begin(context.Context) (storetest.Tx, error) { return memTx{e.db.Begin()}, nil }

func (e *memEnv) Advance(_ context.Context, d time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now = e.now.Add(d)
	return nil
}

func (e *memEnv) setBack(ctx context.Context, d time.Duration) error { return e.Advance(ctx, -d) }

func (e *memEnv) Features() storetest.Features {
	return storetest.Features{Lanes: lanes, ConcurrentWriters: true, BackdatedWriters: true, SetBack: e.setBack, View: e.view}
}

func (e *memEnv) view(context.Context) ([]ops.ViewRow, error) {
	return e.db.Pipe(memstore.DefaultPipe).Messages(), nil
}

type memTx struct{ tx *memstore.Tx }

func (t memTx) Enqueue(_ context.Context, msgs ...postrider.Message) error {
	return t.tx.Enqueue(msgs...)
}
func (t memTx) Commit(context.Context) error   { return t.tx.Commit() }
func (t memTx) Rollback(context.Context) error { return t.tx.Rollback() }

// listedEnv is an environment whose run is in docs/conformance.md.
type listedEnv struct {
	storetest.Env
	name string
}

func (e listedEnv) Features() storetest.Features {
	f := e.Env.Features()
	f.Database = e.name
	return f
}

// TestReference runs the whole suite against both families of the reference
// implementation: a suite that fails a correct store is as useless as one that
// passes a broken one.
func TestReference(t *testing.T) {
	for name, family := range map[string]memstore.Family{"cursor": memstore.Cursor, "rows": memstore.Rows, "holes": memstore.Holes} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(*testing.T) storetest.Env {
				return listedEnv{newMemEnv(family, memstore.None), "memory, family " + name}
			})
			t.Run("migrator", func(t *testing.T) {
				storetest.RunMigrator(t, func(*testing.T) *ops.Office {
					return memstore.New(&memstore.Options{Family: family, Empty: true}).Office()
				})
			})
		})
	}
}
