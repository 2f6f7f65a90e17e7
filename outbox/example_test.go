package outbox_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
)

// Stand-ins for what an application has: a database, and a transaction of pgx,
// which this module does not import.
var (
	ctx  = context.Background()
	db   *sql.DB
	pgTx interface {
		Exec(ctx context.Context, query string, args ...any) (commandTag, error)
		Commit(ctx context.Context) error
		Rollback(ctx context.Context) error
	}
)

type commandTag struct{}

func (commandTag) RowsAffected() int64 { return 0 }

type OrderPlaced struct{ Item string }

// An Outbox holds no connection: a package variable is a good place for one.
func ExampleNew() {
	ob := outbox.New(dialect.Postgres, nil)

	place := func(item string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing after Commit
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (item) VALUES ($1)", item); err != nil {
			return err
		}
		if err := ob.Enqueue(ctx, tx, postrider.JSON("orders", "o-1", "order.placed", OrderPlaced{item})); err != nil {
			return err
		}
		return tx.Commit() // order and message, or neither
	}
	if err := place("book"); err != nil {
		fmt.Println(err)
	}
}

// Several messages of one call are written in one statement and keep their order.
func ExampleOutbox_Enqueue() {
	ob := outbox.New(dialect.SQLite, nil)

	var tx *sql.Tx // the application's transaction
	err := ob.Enqueue(ctx, tx,
		postrider.JSON("orders", "o-1", "order.placed", OrderPlaced{"book"}),
		postrider.JSON("orders", "o-1", "order.paid", nil))
	if err != nil {
		fmt.Println(err) // roll back
	}
}

func ExampleOutbox_EnqueueIDs() {
	ob := outbox.New(dialect.Postgres, nil)

	var tx *sql.Tx
	ids, err := ob.EnqueueIDs(ctx, tx, postrider.JSON("orders", "o-1", "order.placed", OrderPlaced{"book"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("enqueued", ids[0]) // a UUIDv7
}

func ExamplePgx() {
	ob := outbox.New(dialect.Postgres, nil)

	tx := pgTx // a pgx.Tx, from pool.Begin or pgx.BeginFunc
	err := ob.Enqueue(ctx, outbox.Pgx(tx), postrider.JSON("orders", "o-1", "order.placed", OrderPlaced{"book"}))
	if err != nil {
		fmt.Println(err)
	}
}

// A library that hides its transaction behind an interface of its own, such as GORM.
func ExampleUnchecked() {
	ob := outbox.New(dialect.Postgres, nil)

	var hidden outbox.Execer // tx.Statement.ConnPool of a *gorm.DB, say
	err := ob.Enqueue(ctx, outbox.Unchecked(hidden), postrider.JSON("orders", "o-1", "order.placed", OrderPlaced{"book"}))
	if err != nil {
		fmt.Println(err)
	}
}

// Package consumer gives its handlers this context. Other code makes it by itself.
func ExampleCausedBy() {
	ob := outbox.New(dialect.Postgres, nil)

	var (
		received postrider.Message // the message that is being handled
		tx       *sql.Tx
	)
	caused := outbox.CausedBy(ctx, received)
	// The new message has the headers causationid and correlationid, and the trace of received.
	if err := ob.Enqueue(caused, tx, postrider.JSON("payments", "o-1", "payment.due", nil)); err != nil {
		fmt.Println(err)
	}
}
