package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/schema"
)

// Stand-ins for the application's database and its pool of pgx, which this
// module does not import.
var (
	db   *sql.DB
	pool inbox.PgxBeginner[pgxTx]
	bus  = membroker.New(nil) // in a service an adapter's source, such as that of kafkabroker
)

type (
	pgxTx interface {
		Exec(ctx context.Context, query string, args ...any) (commandTag, error)
		QueryRow(ctx context.Context, query string, args ...any) pgxRow
		Commit(ctx context.Context) error
		Rollback(ctx context.Context) error
	}
	pgxRow     interface{ Scan(dest ...any) error }
	commandTag struct{}
)

func (commandTag) RowsAffected() int64 { return 0 }

type OrderPlaced struct{ Order string }

// A consumer that runs until the process is asked to end.
func ExampleNew() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	c := consumer.New(bus.Source("billing", "orders"), consumer.SQL(db, dialect.Postgres), &consumer.Options{
		Name:  "billing", // the consumer's identity in the inbox
		Order: func(topic string) inbox.Order { return inbox.Latest },
	})
	consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, e OrderPlaced) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO invoice (order_id) VALUES ($1)", e.Order)
		return err
	})
	if err := c.Migrate(ctx); err != nil { // the inbox's tables
		fmt.Println(err)
		return
	}
	if err := c.Run(ctx); err != nil {
		fmt.Println(err)
	}
}

func ExampleSQL() {
	c := consumer.New(bus.Source("billing", "orders"), consumer.SQL(db, dialect.SQLite), &consumer.Options{Name: "billing"})
	c.HandleMessage("order.placed", func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO invoice VALUES (?, ?)", m.Key, m.Payload)
		return err
	})
}

// Handlers get a pgx.Tx where pool is a *pgxpool.Pool.
func ExamplePgx() {
	c := consumer.New(bus.Source("billing", "orders"), consumer.Pgx(pool), &consumer.Options{Name: "billing"})
	consumer.Handle(c, "order.placed", func(ctx context.Context, tx pgxTx, e OrderPlaced) error {
		_, err := tx.Exec(ctx, "INSERT INTO invoice (order_id) VALUES ($1)", e.Order)
		return err
	})
}

func ExampleHandle() {
	c := consumer.New(bus.Source("billing", "orders"), consumer.SQL(db, dialect.Postgres), &consumer.Options{
		Name:        "billing",
		UnknownType: consumer.Skip, // the topic has many other types
	})
	consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, e OrderPlaced) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO invoice (order_id) VALUES ($1)", e.Order)
		return err // nil: committed with the inbox, then acknowledged; else rolled back and tried again
	})
}

// An error that no further try can cure makes the message a dead letter at once.
func ExamplePermanent() {
	c := consumer.New(bus.Source("billing", "orders"), consumer.SQL(db, dialect.Postgres), &consumer.Options{Name: "billing"})
	consumer.Handle(c, "order.placed", func(_ context.Context, _ *sql.Tx, e OrderPlaced) error {
		if e.Order == "" {
			return consumer.Permanent(errors.New("the order has no number"))
		}
		return nil
	})
}

// Middleware wraps every handler, for logs, limits or measurements.
func ExampleConsumer_Use() {
	c := consumer.New(bus.Source("billing", "orders"), consumer.SQL(db, dialect.Postgres), &consumer.Options{Name: "billing"})
	c.Use(func(next consumer.Handler[*sql.Tx]) consumer.Handler[*sql.Tx] {
		return func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
			begin := time.Now()
			err := next(ctx, tx, m)
			fmt.Println(m.Type, time.Since(begin), err)
			return err
		}
	})
}

type OrderPlacedV2 struct {
	Order string
	Cents int64
}

// Messages of both versions arrive as the newest one.
func ExampleHandleChain() {
	placed := schema.Then(schema.Begin[OrderPlaced](), func(e OrderPlaced) (OrderPlacedV2, error) {
		return OrderPlacedV2{Order: e.Order}, nil // version 1 had no amount
	})
	c := consumer.New(bus.Source("billing", "orders"), consumer.SQL(db, dialect.Postgres), &consumer.Options{Name: "billing"})
	consumer.HandleChain(c, "order.placed", placed, func(ctx context.Context, tx *sql.Tx, e OrderPlacedV2) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO invoice (order_id, cents) VALUES ($1, $2)", e.Order, e.Cents)
		return err
	}, "OrderPlaced") // the type's name in last year's messages
}
