package ops

import (
	"context"
	"math"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
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
	Request(ctx context.Context, act store.Act) (int64, error)
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
	// ParkedCapped: the counts of Parked are lower bounds, also those of lanes. How far a
	// store counts, its counting limit says.
	ParkedCapped bool
	Pending      int64 // committed records not yet settled, scheduled/retry/waiting included; capped by the store's counting limit
	Capped       bool  // Pending is a lower bound
	// Lag is the age of the oldest record that is neither settled nor dead: also of one
	// that fails, or waits behind another. A record with a NotBefore counts from
	// then on, and one that a person sends again from its first failure or, when it had
	// none, from when it was set aside.
	Lag       time.Duration
	LagCapped bool     // Lag is an upper bound, as LaneStatus.LagCapped
	Delivered int64    // sum of the progress counters
	Holds     []Hold   // what people have paused, by lane and key
	Stops     []Stop   // destinations that nothing is sent to
	Alarms    []string // what else a person must see to, with its remedy
}

// Hold is a key or a whole lane that a person has paused.
type Hold struct {
	Lane  store.Lane
	Key   string // "": the lane
	Since time.Time
}

// AddLag raises the lag to that of a lane.
func (s *Status) AddLag(l *LaneStatus) {
	if l.Lag > s.Lag {
		s.Lag, s.LagCapped = l.Lag, l.LagCapped
	}
}

// ParkedIn is how many records of one state a store counted in one lane.
type ParkedIn struct {
	Lane  store.Lane
	State string
	N     int64
}

// ParkedLimit is how many parked records of each state of a pipe a status counts, the first by
// number, where it counts so many unsettled rows of each lane. Records lie side by side in an
// index by state, whatever their lanes are: one bound for the pipe is less than one for each lane
// from five lanes on.
func ParkedLimit(perLane int) int64 {
	const lanes = 5
	return int64(min(perLane, math.MaxInt/lanes)) * lanes
}

// AddParked adds what is parked to lanes that are all there, by number. Of each state of the pipe
// no more than the limit was counted. aside has, for each lane, whether it has a record that is
// not dead, and one that is: where the count has an end, a lane of which none was counted that
// has some has at least one.
func (s *Status) AddParked(counts []ParkedIn, aside [2][]bool, limit int64) {
	var capped [2]bool // of what is not dead, and of what is
	for _, c := range counts {
		kind := 0
		if c.State == store.Dead.String() {
			kind = 1
		} else {
			s.Pending += c.N
		}
		s.Parked[c.State] += c.N
		capped[kind] = capped[kind] || s.Parked[c.State] >= limit
		if int(c.Lane) < len(s.Lanes) {
			l := &s.Lanes[c.Lane]
			if l.Parked += c.N; kind == 0 {
				l.Pending += c.N
			}
			aside[kind][c.Lane] = false // it is counted
		}
	}
	for kind := range aside {
		for lane, some := range aside[kind] {
			if !some || !capped[kind] {
				continue
			}
			if s.Lanes[lane].Parked++; kind == 0 {
				s.Lanes[lane].Pending++
				s.Pending++
			}
		}
	}
	s.Capped, s.ParkedCapped = s.Capped || capped[0], s.ParkedCapped || capped[0] || capped[1]
}

// AtMost is what a text says before Lag: nothing where it is exact.
func (s *Status) AtMost() string {
	if s.LagCapped {
		return "at most "
	}
	return ""
}

// AtMost is Status.AtMost of the lane's lag.
func (l *LaneStatus) AtMost() string {
	if l.LagCapped {
		return "at most "
	}
	return ""
}

// LaneStatus is one lane of a Status.
type LaneStatus struct {
	Lane    store.Lane
	Owner   string // instance name, "" if nobody
	Leased  bool
	Until   time.Duration // lease time left
	Epoch   int64
	Pending int64
	Lag     time.Duration // as Status.Lag
	Behind  time.Duration // Lag of the records that are not parked alone
	// LagCapped: Lag and Behind are upper bounds. As many records as are counted are not due or
	// not of the pipe, and more stand behind them: these are taken for due, at the age of their
	// first.
	LagCapped bool
	Delivered int64
	Parked    int64
	SettledAt time.Time
	// HeldTopics are the topics of its first messages, sent or set aside, that its owner
	// sends nothing to.
	HeldTopics []string
}

// Instance is a relay that has a heartbeat.
type Instance struct {
	BootID, Name string
	Alive        bool
	AliveFor     time.Duration
	Lanes        int
	Trouble      []string     // as in store.Report
	Held         []store.Held // as in store.Report
	Wake         string       // as in store.Report; "" where the store keeps it not
}

// ParkedQuery filters parked records; zero fields do not filter.
type ParkedQuery struct {
	State    store.State // Pending: any
	ID       string
	Topic    string
	Key      string
	Code     string
	AfterSeq int64
	Limit    int // 0: 100
	// Bare leaves out payloads, which not everybody may see who may see the rest.
	Bare bool
}

// ParkedRecord is one record set aside.
type ParkedRecord struct {
	Lane        store.Lane
	Seq         int64
	Message     postrider.Message
	State       store.State
	Captures    bool
	Attempts    int
	Generation  int
	DueIn       time.Duration
	Class       string
	Code        string
	Error       string
	FirstFailed time.Time
	LastAttempt time.Time
	History     []Attempt // the last KeptAttempts, the oldest first
}

// ActState says what became of a request.
type ActState struct {
	ID     int64
	Lane   store.Lane // whose owner does it
	Done   bool
	Result string // one of the results below, once Done
}

// The results of an act.
const (
	ResultDone      = "done"
	ResultGone      = "gone"      // the record was no longer parked
	ResultUnchanged = "unchanged" // what was to be paused was paused, or what was to be resumed was not
)
