package inboxsql

import (
	"context"
	"database/sql"
	"strings"
)

// Statement is a text for one database.
type Statement struct {
	text  string
	order []int // which argument each placeholder stands for; nil: the database numbers them
}

// Statement fills a text, "" for none. Texts are written once, with {words} for what
// differs and with $1, $2 ... as placeholders. Casts are there for drivers that tell
// the server the types of parameters by their Go types.
func (l *Language) Statement(text string) Statement {
	text = l.replacer.Replace(text)
	if l.MySQL {
		return mysqlStatement(text)
	}
	return Statement{text: strings.ReplaceAll(text, "$", l.placeholder)}
}

// None reports whether the database has no such statement.
func (s Statement) None() bool { return s.text == "" }

// Text returns the text as it is sent, and args in the order in which it takes them.
func (s Statement) Text(args []any) (string, []any) {
	if s.order == nil {
		return s.text, args
	}
	ordered := make([]any, len(s.order))
	for i, n := range s.order {
		ordered[i] = args[n]
	}
	return s.text, ordered
}

// Execer is *sql.DB, *sql.Tx and what behaves like them.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Exec runs the statement.
func (s Statement) Exec(ctx context.Context, db Execer, args ...any) (sql.Result, error) {
	text, args := s.Text(args)
	return db.ExecContext(ctx, text, args...)
}

// Querier is that of package inbox.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Query returns the rows of the statement.
func (s Statement) Query(ctx context.Context, db Querier, args ...any) (*sql.Rows, error) {
	text, args := s.Text(args)
	return db.QueryContext(ctx, text, args...)
}

// QueryRow returns the one row of a statement. db is an inbox.Conn.
func QueryRow[R any](ctx context.Context, db interface {
	QueryRow(ctx context.Context, query string, args ...any) R
}, s Statement, args ...any,
) R {
	text, args := s.Text(args)
	return db.QueryRow(ctx, text, args...)
}
