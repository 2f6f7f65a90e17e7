package main

import (
	"context"
	"database/sql"

	"github.com/postrider/postrider"
)

// answer is a message to the order service.
func answer(o Order, typ string) []postrider.Message {
	return []postrider.Message{about(o, orders, typ)}
}

// stockSteps are the handlers of the stock service.
func stockSteps() map[string]step {
	return map[string]step{"stock.reserve": reserve, "stock.release": release}
}

func reserve(ctx context.Context, tx *sql.Tx, o Order) ([]postrider.Message, error) {
	n, err := affected(tx.ExecContext(ctx, `UPDATE stock SET free = free - $1 WHERE sku = $2 AND free >= $1`, o.Qty, o.SKU))
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return answer(o, "stock.refused"), nil
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO reservation VALUES ($1, $2, $3)`, o.ID, o.SKU, o.Qty)
	return answer(o, "stock.reserved"), err
}

// release gives back what the order holds, which may be nothing.
func release(ctx context.Context, tx *sql.Tx, o Order) ([]postrider.Message, error) {
	n, err := affected(tx.ExecContext(ctx, `DELETE FROM reservation WHERE order_id = $1`, o.ID))
	if err == nil && n > 0 {
		_, err = tx.ExecContext(ctx, `UPDATE stock SET free = free + $1 WHERE sku = $2`, o.Qty, o.SKU)
	}
	return answer(o, "stock.released"), err
}

// paymentSteps are the handlers of the payment service. Its till is a table; a
// real one would call its bank with the message's id as idempotency key, because
// a call may be made again where a transaction is not.
func paymentSteps() map[string]step {
	return map[string]step{"payment.charge": charge, "payment.refund": refund}
}

func charge(ctx context.Context, tx *sql.Tx, o Order) ([]postrider.Message, error) {
	if o.Card == "empty" {
		return answer(o, "payment.declined"), nil
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO booking VALUES ($1, $2)`, o.ID, o.Amount)
	return answer(o, "payment.charged"), err
}

// refund pays back what the order has paid, which may be nothing.
func refund(ctx context.Context, tx *sql.Tx, o Order) ([]postrider.Message, error) {
	_, err := tx.ExecContext(ctx, `INSERT INTO booking
		SELECT order_id, -sum(amount) FROM booking WHERE order_id = $1 GROUP BY order_id HAVING sum(amount) > 0`, o.ID)
	return answer(o, "payment.refunded"), err
}

// shippingSteps are the handlers of the shipping service.
func shippingSteps() map[string]step {
	return map[string]step{"shipping.ship": ship}
}

func ship(ctx context.Context, tx *sql.Tx, o Order) ([]postrider.Message, error) {
	_, err := tx.ExecContext(ctx, `INSERT INTO shipment VALUES ($1)`, o.ID)
	return answer(o, "shipping.shipped"), err
}

func affected(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
