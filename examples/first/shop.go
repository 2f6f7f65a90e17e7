package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore"
)

type Order struct{ ID string }

var ob = outbox.New(dialect.SQLite, nil)

// In your transaction: the order and its message are committed together, or not at all.
func placeOrder(ctx context.Context, tx *sql.Tx, o Order) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (?)", o.ID)
	return errors.Join(err, ob.Enqueue(ctx, tx, postrider.JSON("orders", o.ID, "order.placed", o)))
}

// In your service: a relay, and a consumer that writes one invoice however often the message is delivered.
func run(ctx context.Context, db *sql.DB, st *sqlitestore.Store, bus *membroker.Broker) error {
	c := consumer.New(bus.Source("billing", "orders"), consumer.SQL(db, dialect.SQLite), &consumer.Options{Name: "billing"})
	consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, o Order) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO invoice VALUES (?)", o.ID)
		return err
	})
	_, err := st.Migrate(ctx, ops.MigrateRequest{})
	if err = errors.Join(err, c.Migrate(ctx)); err != nil {
		return err
	}
	ended := make(chan error)
	go func() { ended <- relay.New(st, bus.Sink(), nil).Run(ctx) }()
	return errors.Join(c.Run(ctx), <-ended)
}
