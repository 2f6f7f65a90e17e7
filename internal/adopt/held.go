package adopt

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/inboxsql"
)

// heldMost bounds how long statements run under the lock that keeps writers away.
const heldMost = 5 * time.Second

// until is when the statements under a lock must have ended.
func (d DB) until() time.Time { return time.Now().Add(cmp.Or(d.Held, heldMost)) }

func left(end time.Time) int64 { return max(1, time.Until(end).Milliseconds()) }

// bound has the server end the next statements of the transaction in time.
func bound(ctx context.Context, tx txn, end time.Time) error {
	_, err := tx.ExecContext(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", left(end)))
	return err
}

// bounded has MySQL or MariaDB end each SELECT in time. The end of a context alone leaves a statement at work, and the lock
// with it.
type bounded struct {
	execer
	end time.Time
}

func (b bounded) limit(query string) string {
	ms := left(b.end)
	// The first comment is code for MariaDB alone, the second one for MySQL.
	limit := fmt.Sprintf("/*M!100101 SET STATEMENT max_statement_time=%.3f FOR */ SELECT /*+ MAX_EXECUTION_TIME(%d) */", float64(ms)/1000, ms)
	return strings.Replace(query, "SELECT", limit, 1)
}

func (b bounded) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return b.execer.QueryRowContext(ctx, b.limit(query), args...)
}

func (b bounded) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return b.execer.QueryContext(ctx, b.limit(query), args...)
}

// tooLong gives the end of such a statement its reason.
func (d DB) tooLong(ctx context.Context, p *Plan, err error) error {
	ended := code(err) == "57014" || slices.Contains([]uint16{1317, 1969, 3024}, inboxsql.MySQLNumber(err)) || errors.Is(err, context.DeadlineExceeded)
	if !ended || ctx.Err() != nil {
		return err
	}
	return &RefusedError{
		Table: p.Table.Full(), Reason: NotPossible, Text: "the last rows take more than " + cmp.Or(d.Held, heldMost).String() + " to find and copy, and writers would wait as long; no trigger was installed",
		Fix: "add an index that begins with " + p.Mapping.State.Column + ", or run it again when the server has less to do", Err: err,
	}
}
