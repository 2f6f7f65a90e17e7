// Package mysqlstore keeps an outbox in MySQL or MariaDB: an append-only log, read by a
// cursor that tracks holes, which are numbers that were drawn and whose rows were not seen
// yet. Nothing is written per message after its INSERT.
//
// The tables begin with postrider_: outbox, progress, relay, parked, act, hold, stop, pipe,
// repair, retention, settled, journal, dropped, alarm, info and migration; the view is
// postrider_messages. A plain INSERT INTO postrider_outbox (topic, `key`, type, payload)
// enqueues a message.
package mysqlstore

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/beats"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/late"
	"github.com/postrider/postrider/store/mysqlstore/internal/operations"
	"github.com/postrider/postrider/store/mysqlstore/internal/portion"
	"github.com/postrider/postrider/store/mysqlstore/internal/span"
	"github.com/postrider/postrider/store/mysqlstore/internal/views"
)

// DefaultPipe is the pipe that reads an outbox from its beginning; pipes of
// other names start from the first lease of a store with Options.MakePipe.
const DefaultPipe = store.DefaultPipe

// DefaultLanes is the number of lanes of an outbox made without saying how many.
const DefaultLanes = store.DefaultLanes

const (
	defaultCountLimit = 2_000
	// The pauses between two looks of Wait for new rows, the first and the longest one. The
	// longest is longer than an idle relay waits: then its reads alone look.
	pollFirst = time.Millisecond
	pollLast  = 50 * time.Millisecond
)

// Options are the settings of a Store. The zero value of every field is its default.
type Options struct {
	Pipe       string // the reader's name; default "main"
	MakePipe   bool   // Lease makes a pipe that is missing, from now; default: it is an error
	CountLimit int    // records that Status counts per lane before it says "at least"; default 2,000
}

// Store is one pipe of an outbox in MySQL or MariaDB. It is safe for concurrent use.
type Store struct {
	box   *db.Outbox
	own   *sql.DB // of box where Open made it; nil: it is the caller's
	opts  Options
	views *views.Views
	born  time.Time // holes are timed from here, by the monotonic clock

	mu       sync.Mutex
	identity string        // of the last Lease, "" before
	here     string        // the SQL of the identity where it was leased
	filter   *store.Filter // of the pipe; nil: not read yet
	eye      eye
	beats    beats.Beats
	refusal  late.Refusal
	portion  portion.Portion
	pace     span.Pace

	pauseNext time.Duration // of Wait
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

// New returns a store over a pool, best one of [OpenDB]: it must allow several statements in
// one call, and its sessions must commit by themselves, use utf8mb4 and have a sql_mode that
// shows the options of tables; a lease fails otherwise. It does no I/O and never closes the
// pool. opts may be nil.
func New(pool *sql.DB, opts *Options) *Store {
	s := &Store{born: time.Now()}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Pipe == "" {
		s.opts.Pipe = DefaultPipe
	}
	if s.opts.CountLimit <= 0 {
		s.opts.CountLimit = defaultCountLimit
	}
	s.box = &db.Outbox{DB: pool, Pipe: s.opts.Pipe}
	s.views = views.New(s.box)
	return s
}

// Info implements store.Store.
func (s *Store) Info() store.Info {
	return store.Info{Name: "mysql", Pipe: s.box.Pipe, SetStop: operations.Stops{Outbox: s.box}.SetStop}
}

// Wait implements store.Store. It returns when a row above the tip is visible, or one
// that was a hole. Where such rows have to wait, it waits until the limit.
func (s *Store) Wait(ctx context.Context, limit time.Duration) error {
	end := time.NewTimer(limit)
	defer end.Stop()
	// The read before this call has just looked: an idle outbox is not asked at once.
	for idle := s.pause(false) > pollFirst; ; idle = false {
		if !idle {
			news, err := s.news(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err == nil && news {
				s.pause(true)
				return nil
			}
		}
		poll := time.NewTimer(s.pause(false))
		select {
		case <-ctx.Done():
			poll.Stop()
			return ctx.Err()
		case <-end.C:
			poll.Stop()
			return nil
		case <-poll.C:
			s.paused()
		}
	}
}

// pause returns how long Wait pauses before it looks again. News makes it short. Without
// news it grows from call to call.
func (s *Store) pause(news bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if news || s.pauseNext == 0 {
		s.pauseNext = pollFirst
	}
	return s.pauseNext
}

// paused doubles the next pause.
func (s *Store) paused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pauseNext = min(2*s.pauseNext, pollLast)
}

// leased returns the identity of the last Lease, "" before, and the SQL that yields it on the
// server that was leased, and never on another one: a failover must not go unseen between
// two leases.
func (s *Store) leased() (identity, here string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.identity == "" {
		return "", `CONCAT(postrider_info.id, '/', postrider_info.epoch)`
	}
	return s.identity, s.here
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
		query += ` OR EXISTS (SELECT 1 FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE ` + db.Within(look.Open[:min(len(look.Open), db.MostRanges)]) + `)`
	}
	err = s.box.DB.QueryRowContext(ctx, query, look.Tip).Scan(&found)
	return found, err
}
