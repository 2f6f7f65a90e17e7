// Package memstore is the reference implementation of package store, in memory.
// It has both families of stores: [Cursor] reads an append-only log by a cursor
// that knows which transactions were in flight; in [Rows] a record is pending as
// long as its row exists.
//
// It is the oracle of the simulation and of storetest, and the store behind the
// URL memory:. Nothing survives the process.
package memstore

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
)

// Family says how pending records are told from settled ones.
type Family uint8

// The families.
const (
	Cursor Family = iota // a log with a cursor per pipe and lane, as in pgstore
	Rows                 // rows present are pending, as in a queue that deletes what it has sent
	Holes                // a log with a cursor that tracks holes, as in mysqlstore
)

// DefaultLanes is the number of lanes when Options.Lanes is 0.
const DefaultLanes = store.DefaultLanes

// DefaultPipe is the pipe that the Store of New reads for.
const DefaultPipe = store.DefaultPipe

// Options are the settings of a database in memory. nil means all defaults.
type Options struct {
	Lanes  int    // 0: 64
	Family Family // Cursor
	// Empty makes a database without a schema: Migrate must be called first.
	Empty bool
	// Now is the database's clock. nil: time.Now.
	Now func() time.Time
	// NewID makes the ids of messages that have none. nil: UUIDv7.
	NewID func() string
	// Step, when set, is called at the points of a read and of a settlement
	// where a database lets others run, without any lock held. An error ends
	// the operation there. For tests.
	Step func(Point) error
	// Log keeps what a stream of the log has: see [Store.OpenLog]. Family Cursor only.
	Log bool
	// Defect breaks the database on purpose, to prove that a suite bites.
	Defect Defect
}

// Point is a moment inside an operation at which others may run.
type Point uint8

// The points. MidSettle exists only under the defect SplitSettle.
const (
	AfterSequence Point = iota // Read has read the sequence, not yet the snapshot
	AfterSnapshot              // Read has its snapshot, not yet the next transaction id
	BetweenLooks               // between two statements of a Read in the family Holes
	MidSettle                  // a broken Settle between its two transactions
)

// Store is one pipe of a database in memory. It implements store.Store,
// and is safe for concurrent use. What people do to it is in its [Store.Office].
type Store struct {
	db   *database
	name string

	mu       sync.Mutex
	seen     uint64 // db.version at the last Read
	identity string // of the last Lease
	clock    func() time.Time

	log *logReader // Options.Log: shared by all handles of one instance

	holes   holes.Tracker // family Holes; guarded by the database's mu
	history string        // the identity under which holes were seen
}

var _ store.Store = (*Store)(nil)

// New makes an empty database and returns its default pipe. opts may be nil.
func New(opts *Options) *Store {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Lanes <= 0 {
		o.Lanes = DefaultLanes
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.NewID == nil {
		o.NewID = func() string { return newUUID(o.Now()) }
	}
	db := &database{opts: o, identity: "memory/1", bell: make(chan struct{})}
	db.reset()
	if !o.Empty {
		db.schema = schemaVersion
	}
	return db.handle(DefaultPipe)
}

// Pipe returns a handle on the pipe called name, which is made if it does not
// exist and then starts from now. Every relay instance of a test takes its own
// handle: what a handle remembers between calls (the identity, what Wait has
// seen) belongs to one instance.
func (s *Store) Pipe(name string) *Store { return s.db.handle(name) }

// Pause pauses the whole pipe, or lets it continue.
func (s *Store) Pause(on bool) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.db.pipe(s.name).paused = on
}

// Knowing returns a handle on the same pipe as an instance has it that leased
// under identity last, for tests that let calls overtake each other.
func (s *Store) Knowing(identity string) *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Store{db: s.db, name: s.name, identity: identity, clock: s.clock, log: s.log}
}

// ClientClock sets the clock of the client, which only the defect ClientClock
// looks at.
func (s *Store) ClientClock(now func() time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock = now
}

// Info implements store.Store.
func (s *Store) Info() store.Info {
	return store.Info{Name: "memory", Pipe: s.name, Crashes: true, Ahead: s.log != nil}
}

// Wait implements store.Store. It returns at once when a transaction was
// committed, a record parked or an act requested since the last Read through
// this handle.
func (s *Store) Wait(ctx context.Context, limit time.Duration) error {
	s.mu.Lock()
	seen := s.seen
	s.mu.Unlock()
	s.db.mu.Lock()
	version, bell := s.db.version, s.db.bell
	s.db.mu.Unlock()
	if version != seen {
		s.look(version)
		return ctx.Err()
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-bell:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (s *Store) look(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = version
}

// checkIdentity reports ErrIdentity when the history changed since the last
// Lease through this handle. Called with db.mu held.
func (s *Store) checkIdentity() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.identity != "" && s.identity != s.db.identity {
		return fmt.Errorf("memory: leased under %s, found %s: %w", s.identity, s.db.identity, store.ErrIdentity)
	}
	return nil
}

// database is what all handles share. mu guards everything below it.
type database struct {
	opts Options

	mu       sync.Mutex
	schema   int
	identity string
	version  uint64
	bell     chan struct{}

	seq       int64 // last number drawn
	nextXid   int64
	completed int64 // latest completed transaction
	running   map[int64]bool
	drawing   map[*Tx]time.Time // family Holes: when the statement began that inserts
	txs       map[int64]*txn
	log       [][]*row // by lane, in seq order
	wal       []*txn   // Options.Log: committed ones in the order of their commits

	pipes     map[string]*pipe
	instances map[string]*instance
	requestID int64
	requests  []*request
}

type row struct {
	seq  int64
	xid  int64
	tx   *txn
	lane store.Lane
	rec  Record
}

type instance struct {
	name   string
	until  time.Time
	seen   time.Time
	report store.Report
}

// reset makes the tables anew. Called with mu held, or before anybody knows db.
func (db *database) reset() {
	db.seq, db.nextXid, db.completed = 0, 1, 0
	db.running = map[int64]bool{}
	db.drawing = map[*Tx]time.Time{}
	db.txs = map[int64]*txn{}
	db.log = make([][]*row, db.opts.Lanes)
	db.pipes = map[string]*pipe{}
	db.instances = map[string]*instance{}
	db.requestID, db.requests = 0, nil
}

func (db *database) handle(name string) *Store {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.pipe(name)
	s := &Store{db: db, name: name}
	if db.opts.Log && db.opts.Family == Cursor {
		s.log = newLogReader(db.opts.Now)
	}
	return s
}

// enter locks the database, or says why it cannot be used.
func (s *Store) enter(ctx context.Context) (*pipe, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.db.mu.Lock()
	if s.db.schema != schemaVersion {
		s.db.mu.Unlock()
		return nil, &store.SchemaError{Schema: "memory", Have: s.db.schema, Want: schemaVersion}
	}
	return s.db.pipe(s.name), nil
}

// ring wakes everybody who waits. Called with mu held.
func (db *database) ring() {
	db.version++
	close(db.bell)
	db.bell = make(chan struct{})
}

// step lets others run at p. Called with mu held; holds it again on return.
func (db *database) step(p Point) error {
	if db.opts.Step == nil {
		return nil
	}
	db.mu.Unlock()
	defer db.mu.Lock()
	return db.opts.Step(p)
}

func (db *database) laneOf(key, id string) store.Lane {
	if key == "" {
		key = id
	}
	h := fnv.New32a()
	h.Write([]byte(key))
	n := db.opts.Lanes
	if db.opts.Defect == LaneByInstances {
		n = min(n, max(1, db.alive(db.opts.Now())))
	}
	return store.Lane(h.Sum32() % uint32(n))
}

// alive counts the instances whose heartbeat counts at now.
func (db *database) alive(now time.Time) (n int) {
	for _, i := range db.instances {
		if now.Before(i.until) {
			n++
		}
	}
	return n
}
