package db

import (
	"context"
	"database/sql"
	"errors"
	"strings"
)

// Querier is a pool, or a connection inside a transaction.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Write runs fn in a transaction that holds the write lock from its beginning.
// It does not rely on the pool's _txlock: the pool may be the application's.
func (o *Outbox) Write(ctx context.Context, what string, fn func(q Querier) error) (err error) {
	conn, err := o.DB.Conn(ctx)
	if err != nil {
		return o.Wrap(what, err)
	}
	defer func() {
		if cerr := conn.Close(); err == nil && cerr != nil {
			err = o.Wrap(what, cerr)
		}
	}()
	if err := beginImmediate(ctx, conn); err != nil {
		return o.Wrap(what, err)
	}
	// Once begun, the transaction is ended whatever becomes of ctx: the
	// connection goes back to a pool.
	end := context.WithoutCancel(ctx)
	if err = fn(conn); err == nil {
		err = ctx.Err()
	}
	if err == nil {
		if _, err = conn.ExecContext(end, "COMMIT"); err == nil {
			return nil
		}
	}
	if _, rerr := conn.ExecContext(end, "ROLLBACK"); rerr != nil && !strings.Contains(rerr.Error(), "no transaction is active") {
		err = errors.Join(err, rerr)
	}
	return o.Wrap(what, err)
}

// beginImmediate leaves the connection's own timeout as it was: the pool may be
// the application's.
func beginImmediate(ctx context.Context, c *sql.Conn) error {
	var wait int64
	if err := c.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&wait); err != nil {
		return err
	}
	exec := func(ctx context.Context, query string) error {
		_, err := c.ExecContext(ctx, query)
		return err
	}
	return withoutWait(ctx, wait, exec, func(ctx context.Context) error { return exec(ctx, "BEGIN IMMEDIATE") })
}

// Snapshot is a connection inside a read transaction.
type Snapshot struct{ Conn *sql.Conn }

// Snapshot begins a transaction that sees one state and changes nothing.
func (o *Outbox) Snapshot(ctx context.Context) (*Snapshot, error) {
	conn, err := o.DB.Conn(ctx)
	if err != nil {
		return nil, o.Wrap("status", err)
	}
	if _, err := conn.ExecContext(ctx, "BEGIN DEFERRED"); err != nil {
		return nil, o.Wrap("status", errors.Join(err, conn.Close()))
	}
	return &Snapshot{conn}, nil
}

// End gives the connection back. Nothing was written, so a failure loses nothing:
// database/sql drops a broken connection.
func (t *Snapshot) End() {
	_, _ = t.Conn.ExecContext(context.Background(), "ROLLBACK") //nolint:forbidigo // ends after ctx as well
	_ = t.Conn.Close()
}

// List reads one column.
func List[T any](ctx context.Context, q Querier, query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		var v T
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}
