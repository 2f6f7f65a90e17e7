package orders

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/outbox"
)

// Consumer is the warehouse's name in its inbox: under another name every
// message would count as new.
const Consumer = "warehouse"

// Warehouse keeps the stock. It receives the messages of orders at least once
// and applies each once: the inbox claims the message in the transaction that
// changes the stock.
type Warehouse struct {
	db    *sql.DB
	inbox *inbox.Inbox
	log   *slog.Logger
}

// NewWarehouse returns a warehouse whose stock is in db, a database of the
// dialect d; schema holds the inbox ("" for the default). It does no I/O.
func NewWarehouse(db *sql.DB, d outbox.Dialect, schema string, log *slog.Logger) *Warehouse {
	return &Warehouse{db: db, inbox: inbox.New(d, Consumer, &inbox.Options{Schema: schema}), log: log}
}

// Migrate makes the tables of the stock and of the inbox.
func (w *Warehouse) Migrate(ctx context.Context) error {
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("make the tables of the warehouse: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := w.inbox.Migrate(ctx, tx); err != nil {
		return err
	}
	for _, stmt := range []string{
		`CREATE TABLE IF NOT EXISTS stock (sku text PRIMARY KEY, reserved bigint NOT NULL, sold bigint NOT NULL, moves bigint NOT NULL)`,
		// No constraint forbids a second row for one step: an effect that
		// happened twice must be visible.
		`CREATE TABLE IF NOT EXISTS movements (ref text NOT NULL, order_id text NOT NULL, step text NOT NULL, sku text NOT NULL, qty bigint NOT NULL)`,
	} {
		if _, err := tx.ExecContext(ctx, stmt); err != nil {
			return fmt.Errorf("make the tables of the warehouse: %w", err)
		}
	}
	return tx.Commit()
}

// Run receives from src until ctx ends. What cannot be applied is given back.
func (w *Warehouse) Run(ctx context.Context, src broker.Source) error {
	for ctx.Err() == nil {
		deliveries, err := src.Receive(ctx, 100)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			w.log.WarnContext(ctx, "cannot receive, trying again", "error", err)
			pause(ctx, time.Second)
			continue
		}
		if err := src.Settle(ctx, w.handle(ctx, deliveries)); err != nil && ctx.Err() == nil {
			w.log.WarnContext(ctx, "cannot acknowledge: the messages will come again", "error", err)
		}
	}
	return nil
}

// handle applies deliveries one after the other. After one that failed, the
// others of its order go back too: they must not overtake it.
func (w *Warehouse) handle(ctx context.Context, deliveries []broker.Delivery) []broker.Verdict {
	verdicts := make([]broker.Verdict, len(deliveries))
	failed := map[string]bool{}
	for i, d := range deliveries {
		verdicts[i] = broker.Verdict{Delivery: d, Delay: 100 * time.Millisecond}
		if failed[d.Message.Key] {
			continue
		}
		err := d.Err
		if err == nil {
			err = w.inbox.Once(ctx, w.db, d.Message, func(tx *sql.Tx) error { return apply(ctx, tx, d.Message) })
		}
		if err != nil {
			failed[d.Message.Key] = true
			w.log.WarnContext(ctx, "message not applied, will come again", "id", d.Message.ID, "origin", d.Origin, "error", err)
			continue
		}
		verdicts[i].Ack = true
	}
	return verdicts
}

// apply is the effect of one message: a movement of the stock.
func apply(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
	var e Event
	if err := json.Unmarshal(m.Payload, &e); err != nil {
		return fmt.Errorf("message %s of type %s is no event: %w", m.ID, m.Type, err)
	}
	reserved, sold := 0, 0
	switch m.Type {
	case Placed:
		reserved = e.Qty
	case Shipped:
		reserved, sold = -e.Qty, e.Qty
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO stock (sku, reserved, sold, moves) VALUES ($1, $2, $3, 1)
		ON CONFLICT (sku) DO UPDATE SET reserved = stock.reserved + excluded.reserved,
			sold = stock.sold + excluded.sold, moves = stock.moves + 1`, e.SKU, reserved, sold); err != nil {
		return fmt.Errorf("change the stock of %s: %w", e.SKU, err)
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO movements (ref, order_id, step, sku, qty) VALUES ($1, $2, $3, $4, $5)`,
		e.Ref, e.Order, e.Step, e.SKU, e.Qty)
	if err != nil {
		return fmt.Errorf("write the movement of %s: %w", e.SKU, err)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
