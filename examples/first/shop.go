package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
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

// Beside your service, or in it: the relay delivers to the broker what was committed.
func deliver(ctx context.Context, st *sqlitestore.Store, to broker.Sink) error {
	if _, err := st.Office().Migrator.Migrate(ctx, ops.MigrateRequest{}); err != nil {
		return err
	}
	return relay.New(st, to, nil).Run(ctx)
}

// In the service that receives: one invoice per order, however often its message is delivered.
func bill(ctx context.Context, db *sql.DB, from broker.Source) error {
	c := consumer.New(from, consumer.SQL(db, dialect.SQLite), &consumer.Options{Name: "billing"})
	consumer.Handle(c, "order.placed", insertInvoice) // gets the transaction, which also keeps the message's id
	if err := c.Migrate(ctx); err != nil {
		return err
	}
	return c.Run(ctx)
}
