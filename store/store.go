// Package store is the contract a database must keep so that a relay can carry
// its outbox: one pipe of one outbox behind five methods. The rules that are
// written with "must" here are the cases of package storetest.
package store

import (
	"context"
	"time"

	"github.com/postrider/postrider"
)

// What every store has where its options do not name another.
const (
	DefaultPipe  = "main" // the pipe that reads an outbox from its beginning
	DefaultLanes = 64     // lanes of an outbox
)

// Lane is an opaque id of a unit of parallel work. All messages of one key are
// in one lane; at most one instance works on a lane at a time.
type Lane int32

// Position is an opaque mark made by a store that says how far a pipe has come
// in one lane: a cursor, an LSN, or the set of rows taken. Two positions mean
// the same iff their bytes are equal. nil in a request means "as settled".
type Position []byte

// Store is one pipe of one outbox. Its methods are safe for concurrent use and
// do one round trip where the database allows it. Every error is either a typed
// error of this package or transient: the caller backs off and calls again.
type Store interface {
	// Lease renews the heartbeat of the instance, gives back the lanes named in
	// the request, and takes free lanes (never owned, released, or of an owner
	// whose heartbeat has expired by the database's clock) up to the fair share
	// ceil(lanes / live instances). Taking a lane raises its epoch by at least one.
	// A lane is never held by two live instances.
	Lease(ctx context.Context, req LeaseRequest) (Grant, error)
	// Read returns at most one batch per requested lane, in delivery order
	// (causal order per key), of committed records after the position given,
	// and the position that settles them. It must never skip a record that
	// commits later, must not hold a transaction open after it returns, and
	// changes nothing in the database. Reading ahead from an unsettled position
	// is allowed. The slice of requests is the caller's again when Read returns.
	// With Parked set it returns the parked records that are due: the first of each
	// key before the second of any. Those of one key come by Seq and none is left out
	// between two. With Keys it reads those queues and what stands in no queue, at a
	// cost bounded by what it returns.
	Read(ctx context.Context, reads []LaneRead) ([]Batch, error)
	// Settle applies the settlements in one transaction. A settlement whose
	// epoch is not the lane's newest, or whose lane belongs to another boot id,
	// changes nothing and its lane is returned in lost. A settlement that
	// succeeded makes the lane's epoch Epoch+1. When the outcome of a Settle is
	// unknown (err != nil) the caller must repeat it unchanged: a settlement
	// that had been committed already is then reported as success again. Another
	// settlement under the same epoch is not: see [Settlement.Mark].
	Settle(ctx context.Context, settlements []Settlement) (lost []Lane, err error)
	// Wait returns when work may exist, after limit, or with ctx's error when
	// ctx ends. Sleeping for limit is a correct implementation.
	Wait(ctx context.Context, limit time.Duration) error
	// Info is constant data about the store. It does no I/O.
	Info() Info
}

// Info says what a store is and can do on the road. What people can do is in package ops.
type Info struct {
	Name    string // "postgres", "sqlite", "memory"
	Pipe    string // the pipe that this store reads for
	MaxRead int    // most records that one batch may hold, 0: no limit
	Crashes bool   // [LaneGrant.Crashes] and [LaneGrant.Buried] are told
	// SetStop keeps a destination as stopped over restarts, or ends that, so that
	// [Grant.Stopped] tells every relay of the pipe. It returns false when nothing
	// changed, and an error that matches ErrNoPipe when the pipe does not exist. nil:
	// the store keeps no stopped destinations.
	SetStop func(ctx context.Context, req SetStop) (changed bool, err error)
	// Wake says, without I/O, how Wait learns of messages now. nil: there is one way only.
	Wake func() Wake
	// Ahead: Read may return records ahead of the table: see [LaneRead.Ahead].
	Ahead bool
}

// Wake is how a store's Wait learns of messages: "poll", "listen" or "log".
type Wake struct {
	Wanted string // as configured
	Using  string // now
	Why    string // Using differs from Wanted: without secrets
	Fix    string // what a person can do about it; "": it passes by itself
	Since  time.Time
}

// String is "log", or such as "poll, not log: wal_level is replica; set wal_level = logical".
func (w Wake) String() string {
	text := w.Using
	if w.Using != w.Wanted {
		text += ", not " + w.Wanted
	}
	for i, more := range []string{w.Why, w.Fix} {
		if more != "" {
			text += []string{": ", "; "}[i] + more
		}
	}
	return text
}

// LeaseRequest asks for lanes and renews what is held.
type LeaseRequest struct {
	BootID   string        // random, made anew at every start of the process
	Instance string        // a name for people; need not be unique
	TTL      time.Duration // how long the heartbeat counts
	MaxLanes int           // most lanes to hold; 0: the fair share
	Only     []Lane        // when not empty, only these lanes are taken, and not shared
	Release  []Release     // lanes to give back now, each with its epoch
	Leave    bool          // give back everything and forget the instance
	// Observe asks for the grant without taking new lanes (a draining instance).
	Observe bool
	Report  Report
	// Known are lanes whose parked records the caller knows, each with the epoch
	// under which it does. A store may leave the view of such a lane out as long
	// as nobody has taken or released it since that epoch: the caller knows its own
	// settlements. See [LaneGrant.Known].
	Known map[Lane]int64
	// CountParked is how far [ParkedView.Records] is to be counted; 0: to 100,000.
	CountParked int
	// ActsOnly asks for lanes to carry out requests there, and to send nothing. A store
	// leaves the views of parked records out, which take a while where there are many.
	ActsOnly bool
}

// Share returns how many of an outbox's lanes the instance may hold, where so many instances are
// alive: the fair share, or all lanes of Only, since a store does not know what others may take;
// MaxLanes at the most.
func (r *LeaseRequest) Share(lanes, instances int) int {
	instances = max(instances, 1)
	share := (lanes + instances - 1) / instances
	if len(r.Only) > 0 {
		share = len(r.Only)
	}
	if r.MaxLanes > 0 {
		share = min(share, r.MaxLanes)
	}
	return share
}

// Report is what an instance tells people of itself with a heartbeat. A store
// that has room for it shows it in its Status and to its Doctor.
type Report struct {
	Version string   // of the program
	Trouble []string // what does not work now, in words for a person
	// Reach is the most unsettled messages of a lane that the instance may have in its
	// hands; 0: 1,024.
	Reach int
	Held  []Held // what the instance sends nothing to now
	Wake  string // [Wake.String] of its store, "" where there is one way only
}

// Held is a destination that an instance sends nothing to at the moment, and why. Its
// messages wait, and no attempt of theirs is used up.
type Held struct {
	Destination string    `json:"destination"` // "": all of the broker
	Since       time.Time `json:"since"`       // by the instance's clock
	Code        string    `json:"code"`        // the broker's, short
	Error       string    `json:"error"`       // without payload and secrets, at most 500 bytes
}

// Release gives one lane back. A release with an old epoch changes nothing.
type Release struct {
	Lane  Lane
	Epoch int64
}

// Grant is the answer to a LeaseRequest.
type Grant struct {
	// Identity names the database's history (cluster, timeline, restore epoch).
	// When it differs from the one seen before, everything held in memory for
	// this store must be dropped.
	Identity string
	// Lanes are those held after the call, ascending. A lane that was taken and
	// whose parked records could not be read in time is left out, until the next
	// call. A store may carry out its requests meanwhile: nobody else can.
	Lanes     []LaneGrant
	Total     int // number of lanes of the outbox
	Instances int // live instances, this one included
	// Lapse is the time until the first lease of another live instance ends when
	// it is not renewed; 0: no other instance lives. A caller that looks again then
	// takes a dead instance's lanes over at the first moment.
	Lapse    time.Duration
	Requests []Request // acts of people that wait for lanes held here, by id
	// Now is the database's clock during the call; zero: not told. It shows the
	// caller how far his own has come away from it since the call before.
	Now time.Time
	// Paused: a person has paused the pipe. The instance keeps its lanes and
	// settles what it had begun, and reads and sends nothing new.
	Paused bool
	// Stopped are the destinations of the pipe that nothing is to be sent to: see [Info.SetStop].
	Stopped []string
}

// LaneGrant is one lane that this instance holds.
type LaneGrant struct {
	Lane     Lane
	Epoch    int64
	Position Position   // settled
	Parked   ParkedView // keys set aside in this lane
	Known    bool       // Parked is left out: the request knows the lane, or needs no view
	// Crashes counts the instances that had the lane one after the other, released it
	// not, and settled no message: those since its position moved last, a message was
	// delivered or the lane was released. The caller is not counted. A store may stop
	// counting at 16, leaves it out of a lane that the request knows, and never counts
	// when Info.Crashes is false.
	Crashes int
	// Buried counts, up to 3, the lane's dead letters with CodeCrashed. It may be left
	// out where Crashes is 0.
	Buried int
}

// CodeCrashed is the code of a parked record that is to be delivered alone, or with a
// few like it, since a process ended with it, or with it among others, in its hands.
// The attempts of a retry with this code count such processes only. If the message had
// failed before, a slash and how often follow the code; a person's retry forgets them,
// as it forgets the attempts.
const CodeCrashed = "RELAY_CRASHED" // a relay ended while it delivered the message: read that relay's last log lines

// ParkedView is what the owner must know of a lane's parked records.
type ParkedView struct {
	// Captured are the keys whose later messages wait, sorted. Those that a person
	// has paused are among them.
	Captured []string
	// Heads are the first records of the queues of Captured, one for each key in the
	// same order. nil: the store does not tell, and cannot read with [LaneRead.Keys].
	Heads []Head
	// Paused: a person has paused the lane. Its owner reads nothing of it and
	// sends nothing, and continues executing requests.
	Paused bool
	// NextDue is the time until the next parked record becomes due, negative or
	// zero when one is due now. Meaningful only when HasDue is true.
	NextDue time.Duration
	HasDue  bool
	Records int // parked records in the lane; a store may stop counting at the request's CountParked
	// Gaps are the versions that will not come: those of dead records with a key
	// and a version that do not capture, as runs without a number between, sorted
	// by key and version.
	Gaps []Gap
}

// Head is the first record of a captured key's queue.
type Head struct {
	Seq    int64         // 0: the queue is empty, and a person has paused the key
	DueIn  time.Duration // time until the record becomes due, meaningful only when HasDue is true
	HasDue bool          // false: dead, or paused by a person
}

// Gap says that the versions First to Last of a key are dead letters that were
// skipped.
type Gap struct {
	Key         string
	First, Last int64
}

// LaneRead asks for the next batch of one lane.
type LaneRead struct {
	Lane       Lane
	Epoch      int64
	After      Position // of the batch read before, settled or not; nil: the settled one
	MaxRecords int
	MaxBytes   int  // at least one record is returned whatever its size
	Parked     bool // read what is due among the parked records instead
	// Within, when above 0, bounds the bytes of the messages that all batches of the
	// call hold together. The batch then takes no record, not even its first, that
	// would bring the sum above it. A lane that was left out for that has More, and
	// its position has not moved. Requests are served in their order.
	Within int
	// Keys are the captured keys whose queues a parked read is to read, each once. Of
	// one queue it returns at most MaxRecords/len(Keys) records, and at least one. Due
	// records that stand in no queue take what room is left. Batch.Parked then holds
	// only when the next record that stands in no queue becomes due. nil: a parked
	// read finds the due queues by itself, and returns the whole view.
	Keys []string
	// CountParked is how far a parked read is to count [ParkedView.Records]; 0: to 100,000.
	CountParked int
	// Ahead lets the store answer with records that its log has and its table's read has
	// not returned yet: see [Batch.Ahead]. It may do so only if Known is the number of the
	// read that it answered last for the lane. The caller asks with it as long as it has
	// neither lost nor forgotten anything of the lane since.
	Ahead bool
	// Number is the number of this read, another one for each call; Known is that of the
	// lane's newest read whose answer the caller has, 0: none.
	Number, Known uint64
}

// Batch is what one LaneRead found. Messages and Meta have the same length.
type Batch struct {
	Lane     Lane
	Messages []postrider.Message
	Meta     []Meta
	// Position settles this batch and everything before it. Equal bytes to the
	// request's After mean that nothing moved. nil for a parked batch.
	Position Position
	More     bool // more was ready behind this batch: read again at once
	// Ahead: the records are committed, and a later batch of the lane returns them again. Only
	// that one makes a position, so Position equals the request's After. What was acknowledged
	// of this batch must not be sent again then; what was not is forgotten until then.
	Ahead  bool
	Parked ParkedView // filled for a parked read: the whole lane's view, unless it named Keys
}

// Meta is what a store knows of a record beside the message.
type Meta struct {
	Seq        int64         // the record's number in its outbox
	DueIn      time.Duration // > 0: not-before lies ahead by the database's clock
	State      State         // of a parked record; Pending for others
	Attempts   int           // failed attempts so far
	Generation int           // how often a person has sent it again
	// Last: nothing stands behind the record in its key's queue. Only of records that
	// a parked read found in a queue.
	Last bool
	Code string // of a parked record: that of [Park.Code]
}

// Settlement records what became of a lane's oldest unsettled batches.
type Settlement struct {
	BootID    string
	Lane      Lane
	Epoch     int64
	Position  Position // nil: the position stays (only parked records changed)
	Delivered int      // messages acknowledged since the last settlement, parked ones included
	Park      []Park   // records to set aside, new or already parked
	Unpark    []int64  // Seq of parked records that were delivered: they leave
	Requests  []int64  // ids of acts to execute in this settlement, in order
}

// State is the operator's state of a record.
type State uint8

// The states of a parked record. Retry, and Dead under the policy block,
// capture their key: later messages of the key are parked as Waiting.
const (
	Pending   State = iota // not parked
	Scheduled              // not before; captures nothing
	Retry                  // failed, due later
	Waiting                // behind a captured key
	Dead                   // given up, kept for a person
)

func (s State) String() string {
	switch s {
	case Pending:
		return "pending"
	case Scheduled:
		return "scheduled"
	case Retry:
		return "retry"
	case Waiting:
		return "waiting"
	case Dead:
		return "dead"
	}
	return "invalid"
}

// Park sets one record aside or changes a parked one. Message carries the whole
// record: a store copies it into its parked table under Seq.
//
// Due is derived by the store. The capturing and waiting records of a key are its
// queue, in the order of Seq: a record of it is due when it is not Dead, its time
// has come, and all records before it in the queue are due too. A Scheduled record
// is due when its time has come and its key has no queue. Its time is the message's
// NotBefore by the database's clock, or DueIn for a message without one: how long
// that is from now was counted by another clock, and is never exact. Records without
// a key capture nothing and wait for nobody. Nothing of a paused key or lane is due.
type Park struct {
	Seq      int64
	Message  postrider.Message
	State    State
	DueIn    time.Duration // from now by the database's clock; Retry and Scheduled
	Captures bool          // the key waits behind this record
	Attempts int
	Class    string // error class of the last attempt, "" if none
	Code     string // broker's code, short
	Error    string // short text without payload and secrets, at most 500 bytes
}
