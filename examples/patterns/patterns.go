// Package patterns has two ways to tell others of an order without an outbox. Its tests show the cost of each.
package patterns

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
)

// Topic has the placed orders.
const Topic = "orders"

// Order is the payload of a message.
type Order struct{ ID, Item string }

const (
	tables = "CREATE TABLE orders (id TEXT PRIMARY KEY, item TEXT NOT NULL)"
	insert = "INSERT INTO orders VALUES (?, ?)"
)

// publish sends an order past any outbox. The message's id is the order's.
func publish(ctx context.Context, to broker.Sink, o Order) error {
	m := postrider.JSON(Topic, o.ID, "order.placed", o)
	m.ID = o.ID
	if errs := to.Deliver(ctx, broker.Batch{Messages: []postrider.Message{m}}); errs != nil {
		return fmt.Errorf("publish order %s: %w", o.ID, errors.Join(errs...))
	}
	return nil
}

// PublishFirst publishes an order, and then stores it. Where the second step fails, consumers have been told of
// an order that does not exist.
func PublishFirst(ctx context.Context, db *sql.DB, to broker.Sink, o Order) error {
	if err := publish(ctx, to, o); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, insert, o.ID, o.Item)
	return err
}

// ListenToYourself places an order by its message alone: [Listener] stores it when it returns. Without the broker
// no order is placed, and until the message returns the shop does not know its own order.
func ListenToYourself(ctx context.Context, to broker.Sink, o Order) error { return publish(ctx, to, o) }

// Listener stores the shop's own orders, each once, however often its message arrives.
func Listener(from broker.Source, db *sql.DB) *consumer.Consumer[*sql.Tx] {
	c := consumer.New(from, consumer.SQL(db, dialect.SQLite), &consumer.Options{Name: "shop"})
	consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, o Order) error {
		_, err := tx.ExecContext(ctx, insert, o.ID, o.Item)
		return err
	})
	return c
}
