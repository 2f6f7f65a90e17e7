package store

import (
	"context"
	"time"

	"github.com/postrider/postrider"
)

// Admin is what operators need of a store. Every act on records is a request
// that the lane's owner executes inside a Settle, so that it cannot race the relay.
type Admin interface {
	// Status counts what is where. It must work when no relay lives.
	Status(ctx context.Context) (Status, error)
	// Parked lists parked records by Seq, at most q.Limit.
	Parked(ctx context.Context, q ParkedQuery) ([]ParkedRecord, error)
	// Request stores an act and returns its id. The lane is derived from Seq or
	// Key. It returns ErrNotFound when no such parked record or lane exists, and
	// ErrUnsupported when the store does not know the act.
	Request(ctx context.Context, act Act) (int64, error)
	// Acts reports the state of requests by id.
	Acts(ctx context.Context, ids ...int64) ([]ActState, error)
}

// Status is one look at an outbox and one of its pipes.
type Status struct {
	Identity  string
	Pipe      string
	Paused    bool // the whole pipe
	Lanes     []LaneStatus
	Instances []Instance
	Parked    map[string]int64 // by State.String()
	Pending   int64            // committed records not yet settled, scheduled/retry/waiting included; capped by the store's counting limit
	Capped    bool             // Pending is a lower bound
	Lag       time.Duration    // age of the oldest pending record that is not parked
	Delivered int64            // sum of the progress counters
	Holds     []Hold           // what people have paused, by lane and key
	Stops     []Stop           // destinations that nothing is sent to
	Alarms    []string         // what else a person must see to, with its remedy
}

// Hold is a key or a whole lane that a person has paused.
type Hold struct {
	Lane  Lane
	Key   string // "": the lane
	Since time.Time
}

// LaneStatus is one lane of a Status.
type LaneStatus struct {
	Lane      Lane
	Owner     string // instance name, "" if nobody
	Leased    bool
	Until     time.Duration // lease time left
	Epoch     int64
	Pending   int64
	Lag       time.Duration
	Delivered int64
	Parked    int64
	SettledAt time.Time
}

// Instance is a relay that has a heartbeat.
type Instance struct {
	BootID, Name string
	Alive        bool
	AliveFor     time.Duration
	Lanes        int
}

// ParkedQuery filters parked records; zero fields do not filter.
type ParkedQuery struct {
	State    State // Pending: any
	ID       string
	Topic    string
	Key      string
	AfterSeq int64
	Limit    int // 0: 100
}

// ParkedRecord is one record set aside.
type ParkedRecord struct {
	Lane        Lane
	Seq         int64
	Message     postrider.Message
	State       State
	Captures    bool
	Attempts    int
	Generation  int
	DueIn       time.Duration
	Class       string
	Code        string
	Error       string
	FirstFailed time.Time
	LastAttempt time.Time
}

// ActKind is what a person wants done.
type ActKind string

// The acts. Retry makes the record due now with attempts 0 and the next
// generation, and a dead one a Retry that captures its key; Discard removes it
// and frees its key. Pause captures a key, whose messages are parked as Waiting
// until Resume, or makes its owner leave a whole lane alone; pausing what is
// paused and resuming what is not change nothing.
const (
	ActRetry   ActKind = "retry"
	ActDiscard ActKind = "discard"
	ActPause   ActKind = "pause"
	ActResume  ActKind = "resume"
)

// Act is a request by a person.
type Act struct {
	Kind   ActKind
	Seq    int64  // of the record to retry or discard
	Key    string // to pause or resume; "": the lane Lane
	Lane   Lane   // to pause or resume when Key is empty
	Actor  string // who
	Reason string // why
}

// Request is an act that waits for the lane's owner. An act on many records is
// listed until its last page is done: each settlement that names it does one.
type Request struct {
	ID   int64
	Lane Lane // of the act
	Act
}

// ActState says what became of a request.
type ActState struct {
	ID     int64
	Lane   Lane // whose owner does it
	Done   bool
	Result string // "done", "gone" (the record was no longer parked), "unchanged" (it was paused, or not, already)
}

// Migrator makes and changes the schema of a store.
type Migrator interface {
	// SchemaVersion reports the version found (0: none) and the version wanted.
	SchemaVersion(ctx context.Context) (have, want int, err error)
	// Migrate moves the schema to the target version (0: the newest; -1: remove
	// everything) and returns the steps done, or with DryRun those to do. Two
	// at once are safe: one works, the other finds nothing to do.
	Migrate(ctx context.Context, req MigrateRequest) ([]Step, error)
	// SQL returns the statements of the steps from one version to another for
	// teams that run their own migrations.
	SQL(from, to int) (string, error)
}

// MigrateRequest says where to go.
type MigrateRequest struct {
	Target int // 0: newest, -1: down to nothing
	DryRun bool
	Lanes  int // lanes of a new outbox; 0: 64. Frozen once made.
	// Adopt takes over an outbox whose history does not fit its server any
	// more: it was dumped and restored, or its sequence was set back. Nothing
	// is lost by it. A healthy outbox of this server is left as it is, without a
	// step; while relays work on it an UnusableError names them. Only stores that
	// refuse such an outbox have work to do.
	Adopt bool
	Actor string // who, for the journal of a store that keeps one; "": unknown
	// Roles makes the group roles of the outbox (writer, relay, reader, admin)
	// that are not there and sets what they may do. Stores without roles refuse.
	Roles bool
	// RolePrefix begins the names of the roles; "": the name of the schema.
	RolePrefix string
	// Notify makes every transaction that writes messages tell listening relays,
	// or none any more; "" leaves it as it is. Stores that cannot refuse.
	Notify Notify
	// Partition keeps the outbox in partitions by ranges of numbers from now on:
	// see Partitioner. Writers and relays go on meanwhile. There is no way back.
	// A store that has no partitions refuses it with an UnusableError.
	Partition bool
	// Wait is how long a step goes on asking for a lock that other transactions
	// hold, a moment at a time, before it ends in a *BusyError; 0: two minutes,
	// below 0: it asks once. Stores that lock otherwise pay no heed to it.
	Wait time.Duration
	// Waiting is told after a second and then every 5 s whom a step waits for, by
	// the goroutine that called Migrate; may be nil.
	Waiting func(*BusyError)
}

// Notify is what MigrateRequest.Notify can be.
type Notify string

// The ways to notify.
const (
	NotifyOn  Notify = "on"
	NotifyOff Notify = "off"
)

// Step is one migration.
type Step struct {
	Version int
	Name    string
	Down    bool
	Took    time.Duration
}
