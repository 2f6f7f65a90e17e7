// Package mysqlstore keeps an outbox in MySQL or MariaDB: an append-only log, read by a
// cursor that tracks holes, which are numbers that were drawn and whose rows were not seen
// yet. Nothing is written per message after its INSERT.
//
// The tables are postrider_outbox, postrider_progress, postrider_relay,
// postrider_parked, postrider_request, postrider_journal, postrider_dropped, postrider_alarm and postrider_info,
// and the view postrider_messages. A plain INSERT INTO postrider_outbox (topic, `key`, type, payload)
// enqueues a message.
package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
)

// DefaultPipe is the pipe that reads an outbox from its beginning; pipes of
// other names start from the first lease of a store with Options.MakePipe.
const DefaultPipe = store.DefaultPipe

// DefaultLanes is the number of lanes of an outbox made without saying how many.
const DefaultLanes = store.DefaultLanes

const (
	defaultCountLimit = 100_000
	// Wait looks for new rows this often: at first, and at the most.
	pollFirst = time.Millisecond
	pollLast  = 20 * time.Millisecond
)

// Options are the settings of a Store. The zero value of every field is its default.
type Options struct {
	Pipe       string // the reader's name; default "main"
	MakePipe   bool   // Lease makes a pipe that is missing, from now; default: it is an error
	CountLimit int    // records that Status counts per lane before it says "at least"; default 100,000
}

// Store is one pipe of an outbox in MySQL or MariaDB. It is safe for concurrent use.
type Store struct {
	db   *sql.DB
	own  *sql.DB // the same where Open made it; nil: it is the caller's
	opts Options
	born time.Time // holes are timed from here, by the monotonic clock

	mu       sync.Mutex
	identity string // of the last Lease, "" before
	eye      eye
	portion  portion
}

// eye is what the store remembers of the log, under its own lock, which is held while
// it looks. It is forgotten when the identity changes.
type eye struct {
	mu       sync.Mutex
	identity string
	holes    holes.Tracker
	asked    time.Duration // when the oldest statement was asked for last
	stuck    bool          // the last look could take nothing more: the holes are too many
	seen     witness       // of what was read

	// Of the numbers that were given up.
	sweepFrom int64         // the next sweep looks above this one
	sweepAt   time.Duration // and not before
}

// witness is a row that was read: another one with its number shows that numbers began again.
type witness struct {
	seq int64
	id  string
}

var _ store.Store = (*Store)(nil)

// New returns a store over db, best one of [OpenDB]: it must allow several statements in
// one call. It does no I/O and never closes db. opts may be nil.
func New(db *sql.DB, opts *Options) *Store {
	s := &Store{db: db, born: time.Now()}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Pipe == "" {
		s.opts.Pipe = DefaultPipe
	}
	if s.opts.CountLimit <= 0 {
		s.opts.CountLimit = defaultCountLimit
	}
	return s
}

// Info implements store.Store.
func (s *Store) Info() store.Info { return store.Info{Name: "mysql", Pipe: s.opts.Pipe} }

// Wait implements store.Store. It returns when a row above the tip is visible, or one
// that was a hole. Where such rows have to wait, it waits until the limit.
func (s *Store) Wait(ctx context.Context, limit time.Duration) error {
	end := time.NewTimer(limit)
	defer end.Stop()
	for pause := pollFirst; ; pause = min(2*pause, pollLast) {
		news, err := s.news(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && news {
			return nil
		}
		poll := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			poll.Stop()
			return ctx.Err()
		case <-end.C:
			poll.Stop()
			return nil
		case <-poll.C:
		}
	}
}

// news reports whether a look would find something.
func (s *Store) news(ctx context.Context) (found bool, err error) {
	s.eye.mu.Lock()
	look, stuck := s.eye.holes.Look(), s.eye.stuck
	s.eye.mu.Unlock()
	if stuck {
		return false, nil
	}
	query := `SELECT EXISTS (SELECT 1 FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE seq > ?)`
	if len(look.Open) > 0 {
		query += ` OR EXISTS (SELECT 1 FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE ` + within(look.Open[:min(len(look.Open), mostRanges)]) + `)`
	}
	err = s.db.QueryRowContext(ctx, query, look.Tip).Scan(&found)
	return found, err
}

// mostRanges is how many ranges of numbers one condition names.
const mostRanges = 200

// within is the condition that seq is in one of some ranges.
func within(set holes.Set) string {
	var b strings.Builder
	for i, r := range set {
		if i > 0 {
			b.WriteString(" OR ")
		}
		if r.First == r.Last {
			fmt.Fprintf(&b, "seq = %d", r.First)
		} else {
			fmt.Fprintf(&b, "seq BETWEEN %d AND %d", r.First, r.Last)
		}
	}
	return "(" + b.String() + ")"
}

// querier is a pool, a connection or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// clock is the server's time, in microseconds since 1970.
func (s *Store) clock(ctx context.Context, q querier) (us int64, err error) {
	err = q.QueryRowContext(ctx, `SELECT `+now).Scan(&us)
	return us, err
}

// Numbers of MySQL's errors.
const (
	errDuplicate     = 1062
	errNoDatabase    = 1049
	errNoTable       = 1146
	errAccess        = 1045
	errAccessDB      = 1044
	errTableDenied   = 1142
	errColumnDenied  = 1143
	errOptionPrevent = 1290
	errReadOnly      = 1792
	errReadOnlyMode  = 1836
	errLockWait      = 1205
	errDeadlock      = 1213
	errChanged       = 1020

	errInterrupted      = 1317
	errStatementTimeout = 1969 // MariaDB
	errQueryTimeout     = 3024 // MySQL
)

// code is the number of a server's error, 0 for another error.
func code(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}

func noTable(err error) bool { return code(err) == errNoTable }

// wrap says what failed, as a typed error where a person must act.
func (s *Store) wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	switch code(err) {
	case errNoTable:
		return &store.SchemaError{Schema: "postrider", Have: 0, Want: Version}
	case errNoDatabase:
		return &store.UnusableError{What: "the database does not exist", Fix: "make it with CREATE DATABASE", Err: err}
	case errAccess, errAccessDB:
		return &store.UnusableError{What: "the server rejected our credentials", Fix: "check user and password, and GRANT the database to the user", Err: err}
	case errTableDenied, errColumnDenied:
		return &store.UnusableError{What: "the user lacks a privilege", Fix: "GRANT it", Err: err}
	case errOptionPrevent, errReadOnly, errReadOnlyMode:
		return &store.UnusableError{What: "the server is read-only", Fix: "connect to the primary", Err: err, Passing: true}
	}
	if errors.Is(err, store.ErrSchema) || errors.Is(err, store.ErrUnusable) {
		return err
	}
	return fmt.Errorf("mysql: %s: %w", what, err)
}

// again runs fn until it fails in no way that passes when it is repeated unchanged, a
// few times.
func again(ctx context.Context, fn func() error) error {
	const tries = 5
	var err error
	for range tries {
		if err = fn(); ctx.Err() != nil {
			return err
		}
		switch code(err) {
		case errDeadlock, errLockWait, errChanged:
		default:
			return err
		}
	}
	return err
}

// until is the time from one moment to another, both in microseconds.
func until(now, us int64) time.Duration {
	const most = int64(time.Duration(1<<63-1) / time.Microsecond)
	return time.Duration(max(-most, min(most, us-now))) * time.Microsecond
}

// The years 1 to 9999, in microseconds since 1970.
const (
	firstMoment = -62135596800_000_000
	lastMoment  = 253402300799_999_999
)

func moment(us sql.NullInt64) time.Time {
	if !us.Valid {
		return time.Time{}
	}
	// Times of other years have no text that a consumer reads.
	return time.UnixMicro(max(firstMoment, min(lastMoment, us.Int64))).UTC()
}

// list reads one column.
func list[T any](ctx context.Context, q querier, query string, args ...any) ([]T, error) {
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
