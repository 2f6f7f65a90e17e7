// Package embedded is an outbox, a relay and a broker in memory in one process on
// one SQLite file, for examples that are about something else. Quickstart shows
// it step by step.
package embedded

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore"
)

// App is a database with an outbox, and a broker.
type App struct {
	DB     *sql.DB
	Bus    *membroker.Broker
	Outbox *outbox.Outbox
	store  *sqlitestore.Store
}

// Open makes the outbox in file, and the tables.
func Open(ctx context.Context, file, tables string) (*App, error) {
	db, err := sqlitestore.OpenDB(file)
	if err != nil {
		return nil, err
	}
	a := &App{DB: db, Bus: membroker.New(nil), Outbox: outbox.New(dialect.SQLite, nil), store: sqlitestore.New(db, nil)}
	_, err = a.store.Office().Migrator.Migrate(ctx, ops.MigrateRequest{})
	if err == nil {
		_, err = db.ExecContext(ctx, tables)
	}
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return a, nil
}

// Do runs do in a transaction.
func (a *App) Do(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := a.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Handle makes the inbox of c and runs relay and consumer until n messages have
// come out of it.
func (a *App) Handle(ctx context.Context, c *consumer.Consumer[*sql.Tx], n int) error {
	caller := ctx
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := c.Migrate(ctx); err != nil {
		return err
	}
	ended := make(chan error, 2)
	for _, run := range []func(context.Context) error{relay.New(a.store, a.Bus.Sink(), nil).Run, c.Run} {
		go func() {
			defer stop() // neither continues alone
			ended <- run(ctx)
		}()
	}
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for ctx.Err() == nil && settled(c.Stats()) < int64(n) {
		select {
		case <-look.C:
		case <-ctx.Done():
		}
	}
	stop() // both finish what they have begun
	err := errors.Join(<-ended, <-ended)
	if err == nil && settled(c.Stats()) < int64(n) {
		err = errors.Join(errors.New("not all messages were handled"), caller.Err())
	}
	return err
}

func settled(s consumer.Stats) int64 { return s.Effects + s.Duplicates + s.Stale }
