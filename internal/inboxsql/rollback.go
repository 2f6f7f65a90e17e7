package inboxsql

import (
	"context"
	"time"
)

// rollbackTimeout bounds the rollback of a transaction whose server may not answer any more.
const rollbackTimeout = 5 * time.Second

// Transaction is the part of pgx.Tx that Rollback needs.
type Transaction interface {
	Rollback(ctx context.Context) error
}

// Rollback ends a pgx transaction; after a commit it does nothing. A canceled ctx does not
// keep it from being sent, which would cost the connection. Its own time limit releases the
// caller from a server that does not answer: pgx then closes the connection.
func Rollback(ctx context.Context, tx Transaction) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx) // the caller returns the error that led here
}
