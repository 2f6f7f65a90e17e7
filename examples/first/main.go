// Command first is the program of the README: shop.go is all of it that a service
// writes. This file opens what it needs, places an order and waits for the invoice.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore"
)

func main() {
	if err := first(context.Background(), os.Stdout, "first.db"); err != nil {
		log.Fatal(err)
	}
}

func first(ctx context.Context, out io.Writer, file string) error {
	db, err := sqlitestore.OpenDB(file)
	if err != nil {
		return err
	}
	defer db.Close()
	st := sqlitestore.New(db, nil)
	if _, err := st.Office().Migrator.Migrate(ctx, ops.MigrateRequest{}); err != nil { // deliver does it too; here the order comes first
		return err
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS orders (id); CREATE TABLE IF NOT EXISTS invoice (id)"); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	if err := placeOrder(ctx, tx, Order{"A-1"}); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	bus := membroker.New(nil)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- deliver(ctx, st, bus.Sink()) }()
	go func() { ended <- bill(ctx, db, bus.Source("billing", "orders")) }()
	if err := waitForInvoice(ctx, out, db, ended); err != nil {
		return err
	}
	stop() // both finish what they have begun
	return errors.Join(<-ended, <-ended)
}

// insertInvoice is the effect of an order's message, in the transaction of the inbox.
func insertInvoice(ctx context.Context, tx *sql.Tx, o Order) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO invoice VALUES (?)", o.ID)
	return err
}

func waitForInvoice(ctx context.Context, out io.Writer, db *sql.DB, ended <-chan error) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		var id string
		switch err := db.QueryRowContext(ctx, "SELECT id FROM invoice").Scan(&id); {
		case err == nil:
			_, err = fmt.Fprintf(out, "invoice for order %s\n", id)
			return err
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		select {
		case err := <-ended:
			return errors.Join(errors.New("one of both ended before there was an invoice"), err)
		case <-look.C:
		}
	}
}
