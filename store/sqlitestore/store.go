// Package sqlitestore keeps an outbox in an SQLite database: a log read by a
// cursor on its AUTOINCREMENT number. SQLite has one writer at a time, so the
// order of numbers is the order of commits and a cursor needs nothing else.
//
// The tables that people look at are postrider_outbox, postrider_progress, postrider_relay,
// postrider_parked, postrider_journal, and the views postrider_messages and postrider_lane. A plain
// INSERT INTO postrider_outbox (topic, key, type, payload) enqueues a message.
package sqlitestore

import (
	"context"
	"database/sql"
	"os"
	"sync"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
	"github.com/postrider/postrider/store/sqlitestore/internal/operations"
)

// DefaultPipe is the pipe that reads an outbox from its beginning; pipes of
// other names start from the first lease of a store with Options.MakePipe.
const DefaultPipe = store.DefaultPipe

// DefaultLanes is the number of lanes of an outbox made without saying how many.
const DefaultLanes = store.DefaultLanes

// Version is the schema version that this package needs.
const Version = db.Version

const (
	defaultCountLimit = 2_000
	// Wait looks at the newest number this often: at first, and at the most.
	pollFirst = time.Millisecond
	pollLast  = 20 * time.Millisecond
)

// Options are the settings of a Store. The zero value of every field is its default.
type Options struct {
	Pipe       string // the reader's name; default "main"
	MakePipe   bool   // Lease makes a pipe that is missing, from now; default: it is an error, since a misspelt name would hold back retention for ever
	CountLimit int    // records that Status counts per lane, of each kind, before it says "at least"; default 2,000
}

// Store is one pipe of an outbox in SQLite. It is safe for concurrent use.
type Store struct {
	box  *db.Outbox
	own  *sql.DB // that Open made; nil: the pool is the caller's
	opts Options

	mu       sync.Mutex
	seen     int64       // newest number at the last Read
	identity string      // of the last Lease, "" before
	filter   string      // of the pipe, as the last Lease found it, "" before
	file     os.FileInfo // of the database at the first Lease
}

var _ store.Store = (*Store)(nil)

// New returns a store over pool, best one of [OpenDB]. It does no I/O and never
// closes pool. opts may be nil.
func New(pool *sql.DB, opts *Options) *Store {
	s := &Store{}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Pipe == "" {
		s.opts.Pipe = DefaultPipe
	}
	if s.opts.CountLimit <= 0 {
		s.opts.CountLimit = defaultCountLimit
	}
	s.box = &db.Outbox{DB: pool, Pipe: s.opts.Pipe, Now: time.Now}
	return s
}

// Info implements store.Store.
func (s *Store) Info() store.Info {
	return store.Info{Name: "sqlite", Pipe: s.opts.Pipe, SetStop: operations.NewStops(s.box).SetStop}
}

// Wait implements store.Store. It looks at the newest number of the outbox, one
// row, and returns when it is another than at the last Read.
func (s *Store) Wait(ctx context.Context, limit time.Duration) error {
	end := time.NewTimer(limit)
	defer end.Stop()
	for pause := pollFirst; ; pause = min(2*pause, pollLast) {
		newest, err := s.box.Newest(ctx, s.box.DB)
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
