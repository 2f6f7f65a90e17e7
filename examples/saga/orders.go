package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider"
)

// at is a state of an order and a message that comes in it.
type at struct{ state, message string }

// turn is what follows: the next state, and what is asked of whom. A command
// names the service before the dot: "stock.reserve".
type turn struct {
	state    string
	commands []string
}

// turns is the saga. What is not in it changes nothing: a timeout after the
// charge, where there is no way back, or an answer to a command that was undone
// meanwhile. An undo is asked for even where nothing may have been done: a
// service gets the commands of an order in turn, so the undo comes last.
func turns() map[at]turn {
	undo := turn{"undoing", []string{"stock.release", "payment.refund"}}
	return map[at]turn{
		{"reserving", "stock.reserved"}:   {"charging", []string{"payment.charge"}},
		{"reserving", "stock.refused"}:    {"refused", nil},
		{"reserving", "order.timeout"}:    undo,
		{"charging", "payment.charged"}:   {"shipping", []string{"shipping.ship"}},
		{"charging", "payment.declined"}:  undo,
		{"charging", "order.timeout"}:     undo,
		{"shipping", "shipping.shipped"}:  {"shipped", nil},
		{"undoing", "stock.released"}:     {"refunding", nil},
		{"undoing", "payment.refunded"}:   {"releasing", nil},
		{"refunding", "payment.refunded"}: {"cancelled", nil},
		{"releasing", "stock.released"}:   {"cancelled", nil},
	}
}

// orderSteps are the handlers of the order service: one for all messages.
func (s *shop) orderSteps() map[string]step {
	steps, all := map[string]step{}, turns()
	for a := range all {
		steps[a.message] = func(ctx context.Context, tx *sql.Tx, o Order) ([]postrider.Message, error) {
			return s.turn(ctx, tx, o, a.message, all)
		}
	}
	return steps
}

// errChanged has the message tried again.
var errChanged = errors.New("the order has another state by now")

func (s *shop) turn(ctx context.Context, tx *sql.Tx, o Order, message string, all map[at]turn) ([]postrider.Message, error) {
	var state string
	if err := tx.QueryRowContext(ctx, `SELECT state FROM saga WHERE id = $1`, o.ID).Scan(&state); err != nil {
		return nil, err
	}
	next, known := all[at{state, message}]
	if !known {
		return nil, nil
	}
	n, err := affected(tx.ExecContext(ctx, `UPDATE saga SET state = $1 WHERE id = $2 AND state = $3`, next.state, o.ID, state))
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, errChanged
	}
	fmt.Fprintf(s.out, "%s: %s in %s, now %s\n", o.ID, message, state, next.state)
	return commands(o, next.commands...), nil
}

func commands(o Order, types ...string) (msgs []postrider.Message) {
	for _, typ := range types {
		service, _, _ := strings.Cut(typ, ".")
		msgs = append(msgs, about(o, service, typ))
	}
	return msgs
}

// order places orders until there are n. Every seventh card has no money, every
// eleventh order is larger than the stock, and every fifth customer thinks
// better of it at once.
func (s *shop) order(ctx context.Context, n int, patience time.Duration) error {
	for i := range n {
		o := Order{ID: fmt.Sprintf("o-%d", i), SKU: "book", Qty: 1 + i%3, Amount: 100 * (1 + i%3), Card: "good"}
		if i%7 == 6 {
			o.Card = "empty"
		}
		if i%11 == 10 {
			o.Qty = 2_000_000
		}
		wait := patience
		if i%5 == 4 {
			wait = 0
		}
		if err := s.place(ctx, o, wait); err != nil {
			return fmt.Errorf("place order %s: %w", o.ID, err)
		}
	}
	return nil
}

// place makes an order, asks for its goods and sets its timeout, which is a
// message to ourselves that is delivered when it is due.
func (s *shop) place(ctx context.Context, o Order, patience time.Duration) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `INSERT INTO saga VALUES ($1, 'reserving', $2) ON CONFLICT DO NOTHING`, o.ID, o.Amount)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err // an earlier run has placed it
		}
		timeout := about(o, orders, "order.timeout")
		timeout.NotBefore = time.Now().Add(patience)
		return s.outbox.Enqueue(ctx, tx, append(commands(o, "stock.reserve"), timeout)...)
	})
}
