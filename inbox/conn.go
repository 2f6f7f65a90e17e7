package inbox

import (
	"context"
	"database/sql"

	"github.com/postrider/postrider/outbox"
)

// Conn is a transaction that can also query one row.
type Conn interface {
	outbox.Tx
	QueryRow(ctx context.Context, query string, args ...any) Row
}

// Querier is *sql.DB, *sql.Conn or *sql.Tx.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Row is one row of a result: *sql.Row or pgx.Row.
type Row interface{ Scan(dest ...any) error }

// SQL returns a Conn for a transaction of database/sql.
func SQL(tx *sql.Tx) Conn { return sqlConn{tx} }

type sqlConn struct{ *sql.Tx }

func (c sqlConn) QueryRow(ctx context.Context, query string, args ...any) Row {
	return c.QueryRowContext(ctx, query, args...)
}

// PgxTx is the part of pgx.Tx that [Pgx] needs. R is pgx.Row, inferred.
type PgxTx[Tag outbox.CommandTag, R Row] interface {
	outbox.PgxTx[Tag]
	QueryRow(ctx context.Context, query string, args ...any) R
}

// Pgx returns a Conn for a pgx.Tx.
func Pgx[Tag outbox.CommandTag, R Row](tx PgxTx[Tag, R]) Conn {
	return pgxConn[Tag, R]{Tx: outbox.Pgx[Tag](tx), tx: tx}
}

type pgxConn[Tag outbox.CommandTag, R Row] struct {
	outbox.Tx
	tx PgxTx[Tag, R]
}

func (c pgxConn[Tag, R]) QueryRow(ctx context.Context, query string, args ...any) Row {
	return c.tx.QueryRow(ctx, query, args...)
}
