package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
)

// Tx is an open database transaction: *sql.Tx and whatever embeds it (sqlx.Tx,
// the Tx inside a bun.Tx). For pgx see [Pgx].
//
// Commit and Rollback are never called. They are here so that passing a
// *sql.DB or a *sql.Conn, which would write the message outside the
// transaction, does not compile.
type Tx interface {
	Execer
	Commit() error
	Rollback() error
}

// Execer is the part of a transaction that writes.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// CommandTag is the answer of pgx to a statement: pgconn.CommandTag.
type CommandTag interface{ RowsAffected() int64 }

// PgxTx is the part of pgx.Tx that [Pgx] needs. Tag is pgconn.CommandTag,
// inferred by the compiler, so that this module does not import pgx.
type PgxTx[Tag CommandTag] interface {
	Exec(ctx context.Context, query string, args ...any) (Tag, error)
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// Pgx makes a Tx of a pgx.Tx or a *pgxpool.Tx. A *pgxpool.Pool or a *pgx.Conn
// does not compile.
func Pgx[Tag CommandTag](tx PgxTx[Tag]) Tx { return pgxTx[Tag]{tx} }

type pgxTx[Tag CommandTag] struct{ tx PgxTx[Tag] }

func (p pgxTx[Tag]) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := p.tx.Exec(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return rowsAffected(tag.RowsAffected()), nil
}

func (p pgxTx[Tag]) Commit() error   { return p.tx.Commit(context.Background()) }   //nolint:forbidigo // database/sql's shape has no ctx
func (p pgxTx[Tag]) Rollback() error { return p.tx.Rollback(context.Background()) } //nolint:forbidigo // as above
func (p pgxTx[Tag]) inner() any      { return p.tx }

var errNoInsertID = errors.New("outbox: PostgreSQL has no last insert id")

type rowsAffected int64

func (rowsAffected) LastInsertId() (int64, error)   { return 0, errNoInsertID }
func (r rowsAffected) RowsAffected() (int64, error) { return int64(r), nil }

// Unchecked makes a Tx of anything that can execute a statement. It is for code
// that hides the transaction behind a narrower interface of its own, and for
// libraries that only yield an interface, such as GORM:
//
//	db.Transaction(func(tx *gorm.DB) error {
//		return ob.Enqueue(ctx, outbox.Unchecked(tx.Statement.ConnPool), msg)
//	})
//
// The compiler no longer sees that x is a transaction; you promise it. What can
// be seen at run time is: when x can begin transactions of its own, as a pool
// does, every use fails with a [*NotTxError] before any I/O.
func Unchecked(x Execer) Tx { return unchecked{x} }

type unchecked struct{ Execer }

func (unchecked) Commit() error   { return errUnchecked }
func (unchecked) Rollback() error { return errUnchecked }
func (u unchecked) inner() any    { return u.Execer }

var errUnchecked = errors.New("outbox: a transaction made by Unchecked belongs to its maker")

// NotTxError reports that a value that was given as a transaction is not one.
type NotTxError struct {
	Type string // the Go type of the value
}

// Error names the Go type and what to pass in its place.
func (e *NotTxError) Error() string {
	if e.Type == "<nil>" {
		return "outbox: the transaction is nil"
	}
	return fmt.Sprintf("outbox: %s is not a transaction: it has a method BeginTx, so it is a pool, a connection or a wrapper; "+
		"pass the transaction itself (for bun its field Tx)", e.Type)
}

// CheckTx returns a [*NotTxError] when tx is nil or can begin transactions of
// its own. Enqueue does it before any I/O.
func CheckTx(tx Tx) error {
	var x any = tx
	switch tx := tx.(type) {
	case *sql.Tx:
		if tx == nil {
			return &NotTxError{Type: "<nil>"}
		}
		return nil // the common case needs no reflection
	case interface{ inner() any }:
		x = tx.inner()
	}
	if x == nil {
		return &NotTxError{Type: "<nil>"}
	}
	v := reflect.ValueOf(x)
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return &NotTxError{Type: "<nil>"}
	}
	if _, is := x.(*sql.Tx); is {
		return nil
	}
	// By name: the result of BeginTx differs from library to library (GORM's is
	// an interface of its own).
	if v.MethodByName("BeginTx").IsValid() {
		return &NotTxError{Type: fmt.Sprintf("%T", x)}
	}
	return nil
}
