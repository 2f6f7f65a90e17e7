package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/httpbroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
)

// The services, which are also the topics of the messages to them.
const (
	orders   = "orders"
	stock    = "stock"
	payment  = "payment"
	shipping = "shipping"
)

// Order is the payload of every message, whose type says what is asked for or
// what has happened, and whose key is the order's id.
type Order struct {
	ID     string `json:"id"`
	SKU    string `json:"sku"`
	Qty    int    `json:"qty"`
	Amount int    `json:"amount"` // in cents
	Card   string `json:"card"`
}

// about is a message of typ about o to a service.
func about(o Order, service, typ string) postrider.Message {
	return postrider.JSON(service, o.ID, typ, o)
}

// step is what a service does with a message, in the transaction that remembers
// it: the changes to its own tables, and the messages that answer it.
type step func(ctx context.Context, tx *sql.Tx, o Order) ([]postrider.Message, error)

// shop is what the services have in common.
type shop struct {
	db      *sql.DB
	dialect dialect.Dialect
	outbox  *outbox.Outbox
	out     io.Writer
	log     *slog.Logger
	close   func()
}

// serve returns the endpoint of each service under its name, and what runs them.
func (s *shop) serve(secret httpbroker.Credential) (*http.ServeMux, []func(context.Context) error, error) {
	mux := http.NewServeMux()
	var run []func(context.Context) error
	for service, steps := range map[string]map[string]step{
		orders: s.orderSteps(), stock: stockSteps(), payment: paymentSteps(), shipping: shippingSteps(),
	} {
		receiver, err := httpbroker.NewSource(&httpbroker.SourceOptions{Secrets: secret})
		if err != nil {
			return nil, nil, err
		}
		c := consumer.New(receiver, consumer.SQL(s.db, s.dialect), s.options(service))
		for typ, do := range steps {
			consumer.Handle(c, typ, s.answering(do))
		}
		mux.Handle("POST /"+service, receiver)
		run = append(run, func(ctx context.Context) error {
			defer receiver.Close()
			return c.Run(ctx)
		})
	}
	return mux, run, nil
}

func (s *shop) options(service string) *consumer.Options {
	opts := &consumer.Options{Name: service, Logger: s.log}
	if s.dialect == dialect.SQLite {
		opts.Concurrency = 1 // one writer at a time anyway
	}
	return opts
}

// answering is the whole pattern: what the step changes, its answers, and the
// note that the message was handled are one transaction.
func (s *shop) answering(do step) func(context.Context, *sql.Tx, Order) error {
	return func(ctx context.Context, tx *sql.Tx, o Order) error {
		answers, err := do(ctx, tx, o)
		if err != nil {
			return err
		}
		return s.outbox.Enqueue(ctx, tx, answers...)
	}
}

// migrate makes the tables. The statements suit SQLite and PostgreSQL.
func (s *shop) migrate(ctx context.Context) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		c := consumer.New(nil, consumer.SQL(s.db, s.dialect), s.options(orders))
		if err := c.Inbox().Migrate(ctx, tx); err != nil { // one inbox, whose rows name the service
			return err
		}
		for _, stmt := range []string{
			`CREATE TABLE IF NOT EXISTS saga (id text PRIMARY KEY, state text NOT NULL, amount integer NOT NULL)`,
			`CREATE TABLE IF NOT EXISTS stock (sku text PRIMARY KEY, free integer NOT NULL)`,
			`CREATE TABLE IF NOT EXISTS reservation (order_id text PRIMARY KEY, sku text NOT NULL, qty integer NOT NULL)`,
			// Nothing forbids a second row for one order here: what happened twice must be visible.
			`CREATE TABLE IF NOT EXISTS booking (order_id text NOT NULL, amount integer NOT NULL)`,
			`CREATE TABLE IF NOT EXISTS shipment (order_id text NOT NULL)`,
			`INSERT INTO stock VALUES ('book', 1000000) ON CONFLICT DO NOTHING`,
		} {
			if _, err := tx.ExecContext(ctx, stmt); err != nil {
				return fmt.Errorf("make the tables: %w", err)
			}
		}
		return nil
	})
}

func (s *shop) transact(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// finish waits until every order has come to its end.
func (s *shop) finish(ctx context.Context) error {
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		var open int
		err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM saga WHERE state NOT IN ('shipped', 'refused', 'cancelled')`).Scan(&open)
		if err != nil || open == 0 {
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("%d orders are in flight; run again to continue: %w", open, context.Cause(ctx))
		}
	}
}

// report prints how the orders have ended, and what stock and till say.
func (s *shop) report(ctx context.Context, out io.Writer) error {
	for _, line := range []struct{ text, query string }{
		{"shipped", `SELECT count(*) FROM saga WHERE state = 'shipped'`},
		{"refused", `SELECT count(*) FROM saga WHERE state = 'refused'`},
		{"cancelled", `SELECT count(*) FROM saga WHERE state = 'cancelled'`},
		{"shipments", `SELECT count(*) FROM shipment`},
		{"in the till", `SELECT coalesce(sum(amount), 0) FROM booking`},
		{"of shipped orders", `SELECT coalesce(sum(amount), 0) FROM saga WHERE state = 'shipped'`},
		{"reserved", `SELECT coalesce(sum(qty), 0) FROM reservation`},
		{"gone from the stock", `SELECT 1000000 - free FROM stock`},
	} {
		var n int64
		if err := s.db.QueryRowContext(ctx, line.query).Scan(&n); err != nil {
			return err
		}
		fmt.Fprintf(out, "%-20s %8d\n", line.text, n)
	}
	return nil
}
