package sqlitestore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore"
)

// An outbox in a file, and a relay that delivers its one message.
func ExampleNew() {
	dir, err := os.MkdirTemp("", "postrider")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	db, err := sqlitestore.OpenDB(filepath.Join(dir, "shop.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	st := sqlitestore.New(db, nil)
	if _, err := st.Office().Migrator.Migrate(ctx, ops.MigrateRequest{}); err != nil {
		fmt.Println(err)
		return
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Rollback() // does nothing after Commit
	m := postrider.JSON("orders", "o-1", "order.placed", "book")
	if err := outbox.New(dialect.SQLite, nil).Enqueue(ctx, tx, m); err != nil {
		fmt.Println(err)
		return
	}
	if err := tx.Commit(); err != nil {
		fmt.Println(err)
		return
	}

	bus := membroker.New(nil) // in a service an adapter's sink
	r := relay.New(st, bus.Sink(), &relay.Options{
		Observer: &relay.Observer{Settled: func(relay.SettledInfo) { stop() }},
	})
	if err := r.Run(ctx); err != nil { // it returns when ctx ends
		fmt.Println(err)
		return
	}
	for _, e := range bus.Log("orders") {
		fmt.Println(e.Message.Topic, e.Message.Key, string(e.Message.Payload))
	}
	// Output: orders o-1 "book"
}

// Connections have the settings that an outbox needs: a commit is on the disk before
// it is acknowledged, and a writer waits for another.
func ExampleOpenDB() {
	dir, err := os.MkdirTemp("", "postrider")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	db, err := sqlitestore.OpenDB(filepath.Join(dir, "shop.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	var synchronous int
	err = db.QueryRow("PRAGMA synchronous").Scan(&synchronous)
	fmt.Println(synchronous == 2, err) // FULL
	// Output: true <nil>
}

// A store with a pool of its own: for a program that only relays.
func ExampleOpen() {
	ctx := context.Background()
	st, err := sqlitestore.Open("shop.db", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer st.Close()
	bus := membroker.New(nil) // in a service an adapter's sink
	if err := relay.New(st, bus.Sink(), nil).Run(ctx); err != nil {
		fmt.Println(err)
	}
}
