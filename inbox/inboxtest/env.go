package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// Env is a database as one driver shows it, with the tables of an empty inbox
// and a table of effects. Each case gets a fresh one. Its functions may be
// called from several goroutines.
type Env struct {
	// Dialect and Schema are those of the inbox tables.
	Dialect dialect.Dialect
	Schema  string
	// DB reads what is committed.
	DB inbox.Querier
	// Begin opens a transaction at the isolation level that consumers have.
	Begin func(ctx context.Context) (inbox.Conn, error)
	// Once and OnceBatch are those of [inbox.Inbox], or what it has in their place
	// for the driver.
	Once      func(ctx context.Context, in *inbox.Inbox, m postrider.Message, fn func(inbox.Conn) error) error
	OnceBatch func(ctx context.Context, in *inbox.Inbox, msgs []postrider.Message, fn func(tx inbox.Conn, fresh []postrider.Message) error) error
	// Act inserts an effect inside tx: a name and a number. Acts returns the
	// effects that are committed, "name number" each, the first first. They must not
	// use the code under test.
	Act  func(ctx context.Context, tx inbox.Conn, name string, n int64) error
	Acts func(ctx context.Context) ([]string, error)
	// Age makes every claim older by d.
	Age func(ctx context.Context, d time.Duration) error
	// Touched runs fn in a transaction that is rolled back, and returns how many rows of
	// the stash the database has looked at for it. nil: the database does not tell.
	Touched func(ctx context.Context, fn func(tx inbox.Conn) error) (rows int64, err error)
	// Writers says that a second transaction can write while one is open.
	Writers bool
	// Line reaches the same database in a way that breaks. nil: it cannot be done.
	Line *Line
	// Without names the cases that do not apply, each with the reason.
	Without map[string]string
}

// Line is a way to the database that breaks on demand.
type Line struct {
	// Begin is that of Env.
	Begin func(ctx context.Context) (inbox.Conn, error)
	// Cut ends what runs over the line, as the end of the process does.
	Cut func()
	// Lose lets the next request through and cuts the line before its answer has
	// come whole. nil: there is no network between.
	Lose func()
	// Restore ends the fault; without a fault it does nothing.
	Restore func()
}

func (e *Env) inbox(name string) *inboxwork.Inbox {
	return inboxwork.New(e.Dialect, name, &inbox.Options{Schema: e.Schema})
}

// in runs fn in a transaction, again for as long as the database asks for it.
func (e *Env) in(ctx context.Context, fn func(tx inbox.Conn) error) error {
	for {
		err := transact(ctx, e.Begin, fn)
		var again *inbox.RetryableError
		if !errors.As(err, &again) || ctx.Err() != nil {
			return err
		}
	}
}

func transact(ctx context.Context, begin func(context.Context) (inbox.Conn, error), fn func(tx inbox.Conn) error) error {
	tx, err := begin(ctx)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		_ = tx.Rollback()
		return inbox.Classify(err)
	}
	return inbox.Classify(tx.Commit())
}

// take does with a message what a consumer does: claim, ask the guard, act.
func (e *Env) take(ctx context.Context, in *inboxwork.Inbox, order inbox.Order, m postrider.Message) (r inboxwork.Ruling, err error) {
	err = e.in(ctx, func(tx inbox.Conn) error {
		r, err = e.takeIn(ctx, tx, in, order, m)
		return err
	})
	return r, err
}

func (e *Env) takeIn(ctx context.Context, tx inbox.Conn, in *inboxwork.Inbox, order inbox.Order, m postrider.Message) (inboxwork.Ruling, error) {
	if fresh, err := in.Claim(ctx, tx, m); err != nil || !fresh {
		return inboxwork.Gone, err
	}
	r, _, err := in.Guard(ctx, tx, m, order, "here")
	if err != nil || r != inboxwork.Apply {
		return r, err
	}
	return r, act(ctx, e, tx, &m)
}

// took wants the rulings of messages that are taken one after the other.
func (e *Env) took(ctx context.Context, in *inboxwork.Inbox, order inbox.Order, msgs []postrider.Message, want ...inboxwork.Ruling) error {
	for i, m := range msgs {
		r, err := e.take(ctx, in, order, m)
		if err != nil {
			return fmt.Errorf("message %s: %w", m.ID, err)
		}
		if r != want[i] {
			return fmt.Errorf("message %s, version %d: ruling %d, want %d", m.ID, m.Version, r, want[i])
		}
	}
	return nil
}

// mark wants the mark of a key.
func (e *Env) mark(ctx context.Context, in *inboxwork.Inbox, key string, want int64) error {
	return e.in(ctx, func(tx inbox.Conn) error {
		got, err := in.Mark(ctx, tx, "orders", key)
		if err == nil && got != want {
			err = fmt.Errorf("the mark of key %s is %d, want %d", key, got, want)
		}
		return err
	})
}
