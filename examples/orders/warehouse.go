package orders

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
)

// Consumer is the warehouse's name in its inbox: under another name every
// message would count as new.
const Consumer = "warehouse"

// Warehouse keeps the stock. It receives the messages of orders at least once
// and applies each once: the consumer claims the message in the transaction
// that changes the stock.
type Warehouse struct {
	db      *sql.DB
	dialect dialect.Dialect
	opts    consumer.Options
	around  func(consumer.Handler[*sql.Tx]) consumer.Handler[*sql.Tx]
}

// NewWarehouse returns a warehouse whose stock is in db, a database of the
// dialect d; schema holds the inbox ("" for the default). It does no I/O.
func NewWarehouse(db *sql.DB, d dialect.Dialect, schema string, log *slog.Logger) *Warehouse {
	opts := consumer.Options{Name: Consumer, Schema: schema, Logger: log, BackoffMin: 50 * time.Millisecond}
	if d == dialect.SQLite {
		opts.Concurrency, opts.Prefetch = 1, 64 // one writer at a time anyway
	}
	return &Warehouse{db: db, dialect: d, opts: opts}
}

// Use puts middleware around the warehouse's handlers, such as spans. Call it before Run.
func (w *Warehouse) Use(around func(consumer.Handler[*sql.Tx]) consumer.Handler[*sql.Tx]) {
	w.around = around
}

// Migrate makes the tables of the stock and of the inbox.
func (w *Warehouse) Migrate(ctx context.Context) error {
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("make the tables of the warehouse: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	in := inbox.New(w.dialect, Consumer, &inbox.Options{Schema: w.opts.Schema})
	if err := in.Migrate(ctx, tx); err != nil {
		return err
	}
	word := word(w.dialect)
	for _, stmt := range []string{
		`CREATE TABLE IF NOT EXISTS stock (sku ` + word + ` PRIMARY KEY, reserved bigint NOT NULL, sold bigint NOT NULL, moves bigint NOT NULL)`,
		// No constraint forbids a second row for one step: an effect that
		// happened twice must be visible.
		`CREATE TABLE IF NOT EXISTS movements (ref ` + word + ` NOT NULL, order_id ` + word + ` NOT NULL, step ` + word + ` NOT NULL, sku ` + word + ` NOT NULL, qty bigint NOT NULL)`,
	} {
		if _, err := tx.ExecContext(ctx, stmt); err != nil {
			return fmt.Errorf("make the tables of the warehouse: %w", err)
		}
	}
	if err := addColumn(ctx, tx, w.dialect, "movements", "unit", word+" NOT NULL DEFAULT '"+Piece+"'"); err != nil {
		return err
	}
	return tx.Commit()
}

// Run receives from src until ctx ends.
func (w *Warehouse) Run(ctx context.Context, src broker.Source) error {
	c := consumer.New(src, consumer.SQL(w.db, w.dialect), &w.opts)
	if w.around != nil {
		c.Use(w.around)
	}
	for _, step := range []string{Placed, Paid, Shipped} {
		consumer.HandleChain(c, step, Events, w.apply)
	}
	return c.Run(ctx)
}

// apply is the effect of one message: a movement of the stock.
func (w *Warehouse) apply(ctx context.Context, tx *sql.Tx, e Event) error {
	reserved, sold := 0, 0
	switch e.Step {
	case Placed:
		reserved = e.Quantity.Amount
	case Shipped:
		reserved, sold = -e.Quantity.Amount, e.Quantity.Amount
	}
	change := `INSERT INTO stock (sku, reserved, sold, moves) VALUES ($1, $2, $3, 1)
		ON CONFLICT (sku) DO UPDATE SET reserved = stock.reserved + excluded.reserved,
			sold = stock.sold + excluded.sold, moves = stock.moves + 1`
	if w.dialect == dialect.MySQL {
		change = `INSERT INTO stock (sku, reserved, sold, moves) VALUES ($1, $2, $3, 1)
		ON DUPLICATE KEY UPDATE reserved = reserved + VALUES(reserved), sold = sold + VALUES(sold), moves = moves + 1`
	}
	if _, err := tx.ExecContext(ctx, bound(w.dialect, change), e.SKU, reserved, sold); err != nil {
		return fmt.Errorf("change the stock of %s: %w", e.SKU, err)
	}
	_, err := tx.ExecContext(ctx, bound(w.dialect, `INSERT INTO movements (ref, order_id, step, sku, qty, unit) VALUES ($1, $2, $3, $4, $5, $6)`),
		e.Ref, e.Order, e.Step, e.SKU, e.Quantity.Amount, e.Quantity.Unit)
	if err != nil {
		return fmt.Errorf("write the movement of %s: %w", e.SKU, err)
	}
	return nil
}
