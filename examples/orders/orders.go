// Package orders is a small shop: an HTTP API for orders and a warehouse that
// keeps the stock. Each step of an order is one transaction that changes the
// order and enqueues one message about it, keyed by the order; the warehouse
// applies each message once, in the transaction that remembers it.
package orders

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
)

// Topic is where the messages of all orders go unless Options say otherwise.
const Topic = "orders"

// The types of the messages: what happened to an order, in this order.
const (
	Placed  = "order.placed"
	Paid    = "order.paid"
	Shipped = "order.shipped"
)

// Event is the payload of every message, in its newest version; see events.go.
type Event struct {
	Order    string   `json:"order"`
	Step     string   `json:"step"`
	Ref      string   `json:"ref"` // names the transaction that made the step
	SKU      string   `json:"sku"`
	Quantity Quantity `json:"quantity"`
}

// Quantity is how much of the goods.
type Quantity struct {
	Amount int    `json:"amount"`
	Unit   string `json:"unit"` // "" in an order means [Piece]
}

// Piece is the unit of goods that are counted.
const Piece = "piece"

// Errors that the API turns into status codes.
var (
	ErrInvalid  = errors.New("order, ref and sku must be given, qty must be 1 or more, unit must be piece while events of version 1 are written")
	ErrState    = errors.New("the order is not there or not in the right state")
	ErrDeclined = errors.New("the card was declined")
)

// Shop changes orders. Its methods are safe for concurrent use.
type Shop struct {
	db      *sql.DB
	dialect dialect.Dialect
	outbox  *outbox.Outbox
	topic   string
	writeV1 bool
	pause   func() time.Duration
}

// Options are the settings of a Shop. nil means all defaults.
type Options struct {
	// Schema of the outbox, "" for the default.
	Schema string
	// Topic of the messages, "" for the constant of that name.
	Topic string
	// WriteV1 writes events of version 1, while warehouses run that know no other. An
	// order in another unit than [Piece] is then refused: version 1 would lose it.
	WriteV1 bool
	// Tracer makes a span of each message that is enqueued; nil: none.
	Tracer outbox.Tracer
	// Pause is slept in each transaction after the message was enqueued, so
	// that transactions overlap; nil: no pause.
	Pause func() time.Duration
}

// NewShop returns a shop on db, a database of the dialect d. It does no I/O.
func NewShop(db *sql.DB, d dialect.Dialect, opts *Options) *Shop {
	s := &Shop{db: db, dialect: d, topic: Topic}
	var ob outbox.Options
	if opts != nil {
		ob.Schema, ob.Tracer, s.pause, s.writeV1 = opts.Schema, opts.Tracer, opts.Pause, opts.WriteV1
		if opts.Topic != "" {
			s.topic = opts.Topic
		}
	}
	s.outbox = outbox.New(d, &ob)
	return s
}

// Migrate makes the table of orders. The statements suit each dialect.
func (s *Shop) Migrate(ctx context.Context) error {
	word := word(s.dialect)
	_, err := s.db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS orders (
		id `+word+` PRIMARY KEY, sku `+word+` NOT NULL, qty integer NOT NULL,
		placed `+word+` NOT NULL, paid `+word+`, shipped `+word+`)`)
	if err != nil {
		return fmt.Errorf("make the table of orders: %w", err)
	}
	// Programs of version 1 do not know this column: it has a default for their rows.
	return addColumn(ctx, s.db, s.dialect, "orders", "unit", word+" NOT NULL DEFAULT '"+Piece+"'")
}

// Place makes an order. e.Ref names the step for ever. An order that is there
// already is ErrState, and nothing is enqueued again.
func (s *Shop) Place(ctx context.Context, e Event) error {
	e.Step = Placed
	if e.Quantity.Unit == "" {
		e.Quantity.Unit = Piece
	}
	if e.SKU == "" || e.Quantity.Amount < 1 || s.writeV1 && e.Quantity.Unit != Piece {
		return ErrInvalid
	}
	return s.step(ctx, &e, func(tx *sql.Tx) error {
		insert := `INSERT INTO orders (id, sku, qty, unit, placed) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (id) DO NOTHING`
		if s.dialect == dialect.MySQL {
			// No row is changed where the order is there.
			insert = `INSERT INTO orders (id, sku, qty, unit, placed) VALUES ($1, $2, $3, $4, $5) ON DUPLICATE KEY UPDATE id = orders.id`
		}
		res, err := tx.ExecContext(ctx, bound(s.dialect, insert), e.Order, e.SKU, e.Quantity.Amount, e.Quantity.Unit, e.Ref)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, ErrState)
		}
		return nil
	}, nil)
}

// Pay takes the money for an order. A declined card undoes the whole step after
// its message was written: nobody may ever hear of it.
func (s *Shop) Pay(ctx context.Context, e Event, declined bool) error {
	e.Step = Paid
	return s.step(ctx, &e, func(tx *sql.Tx) error {
		return s.advance(ctx, tx, `UPDATE orders SET paid = $1 WHERE id = $2 AND paid IS NULL`, &e)
	}, func() error {
		if declined {
			return ErrDeclined
		}
		return nil
	})
}

// Ship sends the goods of an order.
func (s *Shop) Ship(ctx context.Context, e Event) error {
	e.Step = Shipped
	return s.step(ctx, &e, func(tx *sql.Tx) error {
		return s.advance(ctx, tx, `UPDATE orders SET shipped = $1 WHERE id = $2 AND paid IS NOT NULL AND shipped IS NULL`, &e)
	}, nil)
}

// advance moves one order and fills in what its message needs.
func (s *Shop) advance(ctx context.Context, tx *sql.Tx, update string, e *Event) error {
	res, err := tx.ExecContext(ctx, bound(s.dialect, update), e.Ref, e.Order)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, ErrState)
	}
	return tx.QueryRowContext(ctx, bound(s.dialect, `SELECT sku, qty, unit FROM orders WHERE id = $1`), e.Order).Scan(&e.SKU, &e.Quantity.Amount, &e.Quantity.Unit)
}

// step is the whole pattern: change the order, enqueue the message, commit
// both. check runs after the message was written and may still undo everything.
func (s *Shop) step(ctx context.Context, e *Event, change func(*sql.Tx) error, check func() error) error {
	fail := func(err error) error { return fmt.Errorf("order %s, %s: %w", e.Order, e.Step, err) }
	if e.Order == "" || e.Ref == "" {
		return ErrInvalid
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if err := change(tx); err != nil {
		return fail(err)
	}
	if err := s.outbox.Enqueue(ctx, tx, s.message(e)); err != nil {
		return fail(err)
	}
	if s.pause != nil {
		time.Sleep(s.pause())
	}
	if check != nil {
		if err := check(); err != nil {
			return fail(err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fail(err)
	}
	return nil
}
