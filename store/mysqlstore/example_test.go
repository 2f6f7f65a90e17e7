package mysqlstore_test

import (
	"context"
	"log"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore"
	"github.com/postrider/postrider/store/ops"
)

const url = "mysql://shop:secret@127.0.0.1:3306/shop"

func ExampleOpen() {
	st, err := mysqlstore.Open(url, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer st.Close()
	if _, err := st.Office().Migrator.Migrate(context.Background(), ops.MigrateRequest{}); err != nil {
		log.Fatal(err)
	}
}

func ExampleOpenDB() {
	db, err := mysqlstore.OpenDB(url, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	ctx := context.Background()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES (?)", 7); err != nil {
		log.Fatal(err)
	}
	ob := outbox.New(dialect.MySQL, nil)
	if err := ob.Enqueue(ctx, tx, postrider.JSON("orders.placed", "7", "order.placed", map[string]int{"id": 7})); err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
}

func ExampleNew() {
	db, err := mysqlstore.OpenDB(url, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	var st store.Store = mysqlstore.New(db, &mysqlstore.Options{Pipe: "audit"})
	log.Println(st.Info().Name)
}
