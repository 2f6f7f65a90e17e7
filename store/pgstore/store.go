package pgstore

import (
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/portions"
	"github.com/postrider/postrider/store/internal/xids"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/early"
	"github.com/postrider/postrider/store/pgstore/internal/migrate"
	"github.com/postrider/postrider/store/pgstore/internal/operations"
	"github.com/postrider/postrider/store/pgstore/internal/tail"
)

// Defaults of Options.
const (
	DefaultSchema = "postrider"
	DefaultPipe   = store.DefaultPipe
	DefaultLanes  = store.DefaultLanes
	// MaxRead is the most records that one batch holds whatever was asked for.
	MaxRead = 10_000
)

// Version is the schema version that this package creates and needs. It also works with a
// newer one that declares itself compatible.
const Version = db.Version

// Options configures a Store. The zero value of every field is its default.
type Options struct {
	Schema     string        // schema of the outbox; default "postrider"
	Pipe       string        // the reader's name; default "main"
	Lanes      int           // lanes of an outbox made by Migrate or printed by SQL; default 64
	LockWait   time.Duration // longest wait for another's lock inside Settle; default 2 s; never more than a quarter of the lease
	Durable    Durability    // how safe a transaction must be before its messages are read; default: committed
	MakePipe   bool          // Lease makes a pipe that is missing, from now; default: it is an error, since a misspelt name would hold back retention for ever
	Wake       Wake          // how Wait learns of work early; default: it sleeps, and the relay polls
	CountLimit int           // rows that Status counts before it says "at least": per lane ahead, and 16 times as many in all lanes; per pipe five times as many that are scheduled, retried, waiting or dead; default 2,000
}

// Store is one pipe of an outbox in PostgreSQL. It is safe for concurrent use.
type Store struct {
	own  *pgxpool.Pool // the pool that Open made; nil: the caller owns the pool
	box  *db.Outbox
	opts Options
	sql  statements

	carry    operations.Executes // requests of people, executed by Settle
	views    *portions.Reader
	migrator *migrate.Migrator
	office   ops.Office

	mu       sync.Mutex
	identity string           // of the last Lease, "" before it
	silent   int              // Leases in a row that got no answer
	minute   time.Time        // when a heartbeat noted where the lanes stand
	kinds    map[int64]string // of the requests that the last Lease listed
	rowBytes int              // recent average size of a record, bounds the next pages
	cautious bool             // rowBytes is a guess made after time ran out
	readFull bool             // the newest page of the log filled its bound
	lastRead sizes            // sizes the buffers of the next read
	pace     pace             // how the next read reads many lanes
	young    xids.Set         // transactions that the last page saw running and that were young
	lookNext uint64           // the transaction id that came next at the last page
	lookedAt time.Time
	quiet    *quiet // the last read that found nothing

	rooms sync.Pool
	bell  *tail.Bell
	early *early.Log // of what goes ahead; nil: nothing does
}

// sizes is the size of a read.
type sizes struct {
	rows  int // of the lane with the most rows
	bytes int // of all lanes
}

var _ store.Store = (*Store)(nil)

// New returns a store over pool. It does no I/O and never closes the pool. An
// invalid option is reported by the first method called. opts may be nil.
//
// A relay should have a pool of its own, made with [ParseConfig]: on a pool that an
// application exhausts, the lease is renewed too late, and the lanes move to other
// instances. After two unanswered heartbeats in a row, all connections of the pool are
// replaced ([pgxpool.Pool.Reset]).
func New(pool *pgxpool.Pool, opts *Options) *Store {
	s := &Store{pace: newPace(), views: portions.New(db.TimedOut, db.Damaged)}
	s.rooms.New = func() any { return new(room) }
	if opts != nil {
		s.opts = *opts
	}
	o := &s.opts
	if o.Schema == "" {
		o.Schema = DefaultSchema
	}
	if o.Pipe == "" {
		o.Pipe = DefaultPipe
	}
	if o.Lanes == 0 {
		o.Lanes = DefaultLanes
	}
	if o.LockWait <= 0 {
		o.LockWait = 2 * time.Second
	}
	if o.Wake == Sleeping {
		o.Wake = Polling
	}
	if o.CountLimit <= 0 {
		o.CountLimit = 2_000
	}
	s.box = db.New(pool, o.Schema, o.Pipe, o.LockWait)
	s.bell = tail.New(s.box, string(o.Wake))
	if o.Wake == Reading && o.Durable != Replayed {
		s.early = early.New(decodeEarly)
		s.bell.Follow(s.early.Rows(s.box))
	}
	s.box.Renewed = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.quiet = nil // it was found with another filter
		if s.early != nil {
			s.early.Doubt()
		}
	}
	switch {
	case !db.Identifier.MatchString(o.Schema):
		s.box.Bad = &store.UnusableError{
			What: fmt.Sprintf("schema name %q is not an identifier", o.Schema),
			Fix:  "use letters, digits and underscores, at most 63, beginning with a letter",
		}
	case o.Lanes < 1 || o.Lanes > 4096:
		s.box.Bad = &store.UnusableError{What: fmt.Sprintf("%d lanes", o.Lanes), Fix: "choose 1 to 4096"}
	case o.Durable != Committed && o.Durable != Flushed && o.Durable != Replayed:
		s.box.Bad = &store.UnusableError{What: fmt.Sprintf("durable=%q", string(o.Durable)), Fix: "choose flush or replay, or leave it out"}
	case o.Wake != Polling && o.Wake != Listening && o.Wake != Reading:
		s.box.Bad = &store.UnusableError{What: fmt.Sprintf("wake=%q", string(o.Wake)), Fix: "choose poll, listen or log, or leave it out"}
	case len(o.Pipe) > 63:
		s.box.Bad = &store.UnusableError{What: "the pipe's name is longer than 63 bytes", Fix: "choose a shorter one"}
	}
	s.sql, s.carry = newStatements(s.box), operations.NewExecutes(s.box)
	s.migrator = migrate.New(s.box, o.Lanes)
	s.office = s.newOffice()
	return s
}

// Info describes the store without I/O.
func (s *Store) Info() store.Info {
	return store.Info{Name: "postgres", Pipe: s.opts.Pipe, MaxRead: MaxRead, Crashes: true, SetStop: s.office.Stops.SetStop, Wake: s.bell.State, Ahead: s.early != nil}
}

func (s *Store) knownIdentity() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.identity
}

func (s *Store) setIdentity(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.identity = id
}
