// Package db is what every room of sqlitestore stands on: one pipe of one outbox in
// SQLite, its transactions, times and errors. It imports no other room.
package db

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/postrider/postrider/store"
)

// Outbox is one pipe of one outbox. It is safe for concurrent use; its fields are set
// before its first use.
type Outbox struct {
	DB   *sql.DB // stays its maker's to close
	Pipe string
	Now  func() time.Time
}

// Version is the schema version that this package needs.
const Version = 10

// Remembered is how long an executed act is kept for who asked for it.
const Remembered = 7 * 24 * time.Hour

// Newest is the highest number that was ever committed: SQLite keeps it, and counts the rows too
// where somebody has removed it.
func (o *Outbox) Newest(ctx context.Context, q Querier) (int64, error) {
	var n int64
	err := q.QueryRowContext(ctx, `SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'postrider_outbox'), 0), coalesce((SELECT max(seq) FROM postrider_outbox), 0))`).Scan(&n)
	return n, o.Wrap("look for new messages", err)
}

// Info reads the identity and the number of lanes, and fails where the schema is another one.
func (o *Outbox) Info(ctx context.Context, q Querier, g *store.Grant) error {
	have, err := o.SchemaVersion(ctx, q)
	if err != nil {
		return err
	}
	if have != Version {
		return &store.SchemaError{Schema: "main", Have: have, Want: Version}
	}
	return q.QueryRowContext(ctx, `SELECT identity, lanes FROM postrider_info`).Scan(&g.Identity, &g.Total)
}

// Knows fails with an error that matches store.ErrNoPipe where the pipe does not exist; fix
// is its remedy.
func (o *Outbox) Knows(ctx context.Context, q Querier, fix string) error {
	var known bool
	err := q.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM postrider_progress WHERE pipe = ?)`, o.Pipe).Scan(&known)
	if err == nil && !known {
		err = &store.UnusableError{What: fmt.Sprintf("pipe %q does not exist", o.Pipe), Fix: fix, Err: store.ErrNoPipe}
	}
	return err
}

// Pipes is the remedy of a look at a pipe that does not exist.
const Pipes = "check --pipe; `postrider pipe list` lists those that do"

// SchemaVersion is the version of the schema that q sees, 0 without one.
func (o *Outbox) SchemaVersion(ctx context.Context, q Querier) (int, error) {
	var n int
	err := q.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name = 'postrider_migration'`).Scan(&n)
	if err != nil || n == 0 {
		return 0, o.Wrap("look for the schema", err)
	}
	err = q.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM postrider_migration`).Scan(&n)
	return n, o.Wrap("read the schema version", err)
}

// Micros is a moment as the tables keep it: microseconds of Unix time.
func Micros(t time.Time) int64 { return t.UnixMicro() }

// After is the moment d from now, without leaving the range of numbers.
func (o *Outbox) After(d time.Duration) int64 { return Micros(o.Now()) + d.Microseconds() }

// Until is the time from now to a moment.
func (o *Outbox) Until(us int64) time.Duration {
	const most = int64(time.Duration(1<<63-1) / time.Microsecond)
	return time.Duration(max(-most, min(most, us-Micros(o.Now())))) * time.Microsecond
}

// Moment is what a column of a time holds; zero for NULL.
func Moment(us sql.NullInt64) time.Time {
	if !us.Valid {
		return time.Time{}
	}
	return time.UnixMicro(us.Int64).UTC()
}
