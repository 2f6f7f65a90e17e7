package consumer

import (
	"context"
	"database/sql"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
	"github.com/postrider/postrider/outbox"
)

// DB runs transactions. [SQL] and [Pgx] make one.
type DB[Tx any] interface {
	// Transact begins a transaction, runs fn and commits; if fn or the commit
	// fails it rolls back and returns the error. conn is the inbox's view of tx.
	Transact(ctx context.Context, fn func(tx Tx, conn inbox.Conn) error) error
	// Dialect is the SQL that the database speaks.
	Dialect() dialect.Dialect
}

// SQL returns a DB for a database of database/sql. The caller closes db. On MySQL
// transactions are READ COMMITTED, as they are on PostgreSQL: the server's default keeps
// the snapshot of the first statement, and locks the gaps beside the rows that it touches.
func SQL(db inbox.Beginner, d dialect.Dialect) DB[*sql.Tx] {
	s := sqlDB{db: db, dialect: d}
	if d == dialect.MySQL {
		s.opts = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	return s
}

type sqlDB struct {
	db      inbox.Beginner
	dialect dialect.Dialect
	opts    *sql.TxOptions
}

func (d sqlDB) Dialect() dialect.Dialect { return d.dialect }

func (d sqlDB) Transact(ctx context.Context, fn func(tx *sql.Tx, conn inbox.Conn) error) error {
	tx, err := d.db.BeginTx(ctx, d.opts)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing, and otherwise err is returned
	if err := fn(tx, inbox.SQL(tx)); err != nil {
		return err
	}
	return tx.Commit()
}

// PgxTx is the part of pgx.Tx that [Pgx] needs.
type PgxTx[Tag outbox.CommandTag, Row inbox.Row] interface{ inbox.PgxTx[Tag, Row] }

// Pgx returns a DB for a *pgxpool.Pool, without importing pgx: the type arguments
// are inferred. The caller closes pool.
func Pgx[Tx PgxTx[Tag, Row], Tag outbox.CommandTag, Row inbox.Row](pool inbox.PgxBeginner[Tx]) DB[Tx] {
	return pgxDB[Tx, Tag, Row]{pool}
}

type pgxDB[Tx PgxTx[Tag, Row], Tag outbox.CommandTag, Row inbox.Row] struct {
	pool inbox.PgxBeginner[Tx]
}

func (pgxDB[Tx, Tag, Row]) Dialect() dialect.Dialect { return dialect.Postgres }

func (d pgxDB[Tx, Tag, Row]) Transact(ctx context.Context, fn func(tx Tx, conn inbox.Conn) error) error {
	tx, err := d.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer inboxsql.Rollback(ctx, tx)
	if err := fn(tx, inbox.Pgx[Tag, Row](tx)); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
