// Command quickstart shows orders, their messages, and one effect of each, in
// one process on one SQLite file. No server.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore"
)

type OrderPlaced struct{ Order string }

func main() {
	if err := run(context.Background(), os.Stdout, "quickstart.db"); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, file string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	db, err := sqlitestore.OpenDB(file)
	if err != nil {
		return err
	}
	defer db.Close()
	st, bus := sqlitestore.New(db, nil), membroker.New(nil)
	c := consumer.New(bus.Source("billing", "orders"), consumer.SQL(db, dialect.SQLite), &consumer.Options{Name: "billing"})
	left := make(chan struct{}, 3)
	consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, e OrderPlaced) error {
		defer func() { left <- struct{}{} }()
		fmt.Fprintf(out, "invoice for order %s\n", e.Order)
		_, err := tx.ExecContext(ctx, "INSERT INTO invoice VALUES (?)", e.Order) // commits with the inbox, or not at all
		return err
	})
	_, err = st.Office().Migrator.Migrate(ctx, ops.MigrateRequest{})
	if err = errors.Join(err, c.Migrate(ctx)); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	_, err = tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS orders (id); CREATE TABLE IF NOT EXISTS invoice (id)")
	ob := outbox.New(dialect.SQLite, nil)
	for _, id := range []string{"A-1", "A-2", "A-3"} {
		_, e := tx.ExecContext(ctx, "INSERT INTO orders VALUES (?)", id)
		err = errors.Join(err, e, ob.Enqueue(ctx, tx, postrider.JSON("orders", "shop", "order.placed", OrderPlaced{id})))
	}
	if err != nil {
		return err
	}
	if err := tx.Commit(); err != nil { // orders and messages: all or none
		return err
	}

	ended := make(chan error, 2)
	go func() { ended <- relay.New(st, bus.Sink(), nil).Run(ctx) }()
	go func() { ended <- c.Run(ctx) }()
	for range 3 {
		<-left
	}
	stop() // both finish what they have begun
	return errors.Join(<-ended, <-ended)
}
