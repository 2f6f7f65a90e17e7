// Package sqlitestore keeps an outbox in an SQLite database: a log read by a
// cursor on its AUTOINCREMENT number. SQLite has one writer at a time, so the
// order of numbers is the order of commits and a cursor needs nothing else.
//
// The tables are postrider_outbox, postrider_progress, postrider_relay,
// postrider_parked, postrider_request, and the view postrider_messages. A plain
// INSERT INTO postrider_outbox (topic, key, type, payload) enqueues a message.
package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/postrider/postrider/store"
)

// DefaultPipe is the pipe that reads an outbox from its beginning; pipes of
// other names start from the moment of their first lease.
const DefaultPipe = store.DefaultPipe

// DefaultLanes is the number of lanes of an outbox made without saying how many.
const DefaultLanes = store.DefaultLanes

const (
	defaultCountLimit = 100_000
	// Wait looks at the newest number this often: at first, and at the most.
	pollFirst = time.Millisecond
	pollLast  = 20 * time.Millisecond
)

// Options are the settings of a Store. The zero value of every field is its default.
type Options struct {
	Pipe       string // the reader's name; default "main"
	CountLimit int    // records that Status counts per lane before it says "at least"; default 100,000
}

// Store is one pipe of an outbox in SQLite. It is safe for concurrent use.
type Store struct {
	db   *sql.DB
	own  *sql.DB // the same where Open made it; nil: it is the caller's
	opts Options
	now  func() time.Time

	mu       sync.Mutex
	seen     int64       // newest number at the last Read
	identity string      // of the last Lease, "" before
	file     os.FileInfo // of the database at the first Lease
}

var _ store.Store = (*Store)(nil)

// New returns a store over db, best one of [OpenDB]. It does no I/O and never
// closes db. opts may be nil.
func New(db *sql.DB, opts *Options) *Store {
	s := &Store{db: db, now: time.Now}
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
func (s *Store) Info() store.Info { return store.Info{Name: "sqlite", Pipe: s.opts.Pipe} }

// Wait implements store.Store. It looks at the newest number of the outbox, one
// row, and returns when it is another than at the last Read.
func (s *Store) Wait(ctx context.Context, limit time.Duration) error {
	end := time.NewTimer(limit)
	defer end.Stop()
	for pause := pollFirst; ; pause = min(2*pause, pollLast) {
		newest, err := s.newest(ctx, s.db)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.mu.Lock()
		news := err == nil && newest != s.seen
		s.mu.Unlock()
		if news {
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

// querier is a pool, or a connection inside a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// newest is the highest number that was ever committed.
func (s *Store) newest(ctx context.Context, q querier) (int64, error) {
	var n int64
	err := q.QueryRowContext(ctx, `SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'postrider_outbox'), 0)`).Scan(&n)
	return n, s.wrap("look for new messages", err)
}

// write runs fn in a transaction that holds the write lock from its beginning.
// It does not rely on the pool's _txlock: the pool may be the application's.
func (s *Store) write(ctx context.Context, what string, fn func(q querier) error) (err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.wrap(what, err)
	}
	defer func() {
		if cerr := conn.Close(); err == nil && cerr != nil {
			err = s.wrap(what, cerr)
		}
	}()
	if err := beginImmediate(ctx, conn); err != nil {
		return s.wrap(what, err)
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
	return s.wrap(what, err)
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

// wrap says what failed, as a typed error where a person must act.
func (s *Store) wrap(what string, err error) error {
	var typed *sqlite.Error
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "no such table: postrider_"), strings.Contains(err.Error(), "no such table: sqlite_sequence"):
		return &store.SchemaError{Schema: "main", Have: 0, Want: Version}
	case !errors.As(err, &typed):
	case typed.Code()&0xff == sqlite3.SQLITE_READONLY:
		return &store.UnusableError{What: "the database file cannot be written", Fix: "make the file and its folder writable", Err: err}
	case typed.Code()&0xff == sqlite3.SQLITE_NOTADB, typed.Code()&0xff == sqlite3.SQLITE_CORRUPT:
		return &store.UnusableError{What: "the database file is damaged or is no SQLite database", Fix: "run PRAGMA integrity_check", Err: err}
	case typed.Code()&0xff == sqlite3.SQLITE_CANTOPEN:
		return &store.UnusableError{What: "the database file cannot be opened", Fix: "check that its folder exists and is writable", Err: err}
	}
	if errors.Is(err, store.ErrSchema) || errors.Is(err, store.ErrUnusable) {
		return err
	}
	return fmt.Errorf("sqlite: %s: %w", what, err)
}

func micros(t time.Time) int64 { return t.UnixMicro() }

// after is the moment d from now, without leaving the range of numbers.
func (s *Store) after(d time.Duration) int64 { return micros(s.now()) + d.Microseconds() }

// until is the time from now to a moment.
func (s *Store) until(us int64) time.Duration {
	const most = int64(time.Duration(1<<63-1) / time.Microsecond)
	return time.Duration(max(-most, min(most, us-micros(s.now())))) * time.Microsecond
}

func moment(us sql.NullInt64) time.Time {
	if !us.Valid {
		return time.Time{}
	}
	return time.UnixMicro(us.Int64).UTC()
}
