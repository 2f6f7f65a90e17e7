package db

import (
	"context"
	"database/sql"
	"errors"

	"github.com/postrider/postrider/store"
)

// Alone runs fn while nobody else makes a pipe or removes rows. The lock is the server's
// and that of the session of q, which is one connection: fn may commit.
func (o *Outbox) Alone(ctx context.Context, q Querier, fn func() error) error {
	const seconds = 10
	var locked sql.NullInt64
	err := q.QueryRowContext(ctx, `SELECT GET_LOCK(CONCAT('postrider_retention.', DATABASE()), ?)`, seconds).Scan(&locked)
	if err == nil && locked.Int64 != 1 {
		err = &store.UnusableError{What: "another session makes a pipe or removes rows", Fix: "try again when it has ended", Passing: true}
	}
	if err != nil {
		return err
	}
	defer func() {
		// Its result says nothing: the lock ends with the session at the latest.
		_, _ = q.ExecContext(context.WithoutCancel(ctx), `DO RELEASE_LOCK(CONCAT('postrider_retention.', DATABASE()))`)
	}()
	return fn()
}

// InTransaction runs fn in a transaction of one connection. All that fn reads is of one moment, also where
// the server's default is less: a number that goes from one table to another is never missed in both.
func InTransaction(ctx context.Context, q Querier, fn func() error) error {
	for _, query := range []string{"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION"} {
		if _, err := q.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	err := fn()
	if err == nil {
		_, err = q.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		if _, rerr := q.ExecContext(context.WithoutCancel(ctx), "ROLLBACK"); rerr != nil && !errors.Is(rerr, sql.ErrConnDone) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}
