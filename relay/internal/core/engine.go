package core

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/postrider/postrider/store"
)

// Engine is the state machine of one instance. It is not safe for concurrent use.
type Engine struct {
	cfg     Config
	rng     *rand.Rand
	now     time.Duration
	out     []Action
	lastID  ID
	started bool
	stopped bool

	lanes map[store.Lane]*lane
	held  []*lane // the same in ascending order

	lease   leaseState
	history uint64    // counts the database's histories that were dropped
	settle  *settleOp // at most one, kept until it is answered
	floor   map[store.Lane]int64

	reads     map[ID]*readOp
	spareRead *readOp // of a read that was answered
	readHold  pause
	parked    parkedReads
	msgs      int // held in memory, all lanes
	bytes     int
	reserved  int // messages that reads in flight may bring
	avgSize   int // bytes per message, smoothed

	reservedBytes int        // bytes that reads in flight may bring
	anySize       *readOp    // the read in flight that may bring one record of any size
	readFirst     store.Lane // that the next read serves first
	tight         bool       // the newest read left a lane out for the bytes of others

	calls     map[ID]*call
	abandoned map[store.Lane]int // cancelled calls that have not come back
	acked     [2]ackedTopic
	lastAck   time.Duration // when an acknowledgement came last
	ackSentAt time.Duration // start of the latest call that brought one
	anyAck    bool
	watched   map[string]time.Duration // places with messages of unknown fate: start of the latest call that brought an acknowledgement there
	wary      bool                     // some lane may have something to send alone
	only      *lane                    // the lane that does so now, nil: none
	aloneAt   time.Duration            // when its turn began
	freeUntil time.Duration            // the others have their turn until then
	signBy    time.Duration            // until then suspects wait for a sign of life from the broker
	pong      bool                     // a ping was answered
	turn      int                      // lane index that delivers first, so that probes rotate
	probed    store.Lane               // of the last probe that failed
	blamed    map[string]int           // by place: dead letters of outages there since one of them ended
	scopes    map[string]*scope
	rows      map[string]streak // by destination
	dests     map[string]string // topic -> destination, learned from errors

	waiting   ID
	pollDelay time.Duration

	paused     bool // by a person, the whole pipe
	draining   bool
	drainUntil time.Duration
	cutOff     bool // the drain deadline has passed

	storeFaults uint8 // bit per kind of call
	storeSaid   reasons
	storeDownAt time.Duration
	newHistory  bool // since then
	sinkDown    bool
	sinkDownAt  time.Duration // when it went down last
	sinkSaid    reasons       // since then

	timer time.Duration // what was asked for last, 0: nothing
}

// New returns an engine that waits for Start.
func New(cfg Config, seed uint64) *Engine {
	cfg = cfg.withDefaults()
	return &Engine{
		cfg:       cfg,
		rng:       rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)),
		lanes:     map[store.Lane]*lane{},
		floor:     map[store.Lane]int64{},
		reads:     map[ID]*readOp{},
		calls:     map[ID]*call{},
		abandoned: map[store.Lane]int{},
		scopes:    map[string]*scope{},
		rows:      map[string]streak{},
		dests:     map[string]string{},
		watched:   map[string]time.Duration{},
		blamed:    map[string]int{},
		pollDelay: cfg.PollMin,
		avgSize:   512,
		parked:    parkedReads{rows: parkedMost},
	}
}

// Step takes one event at a time now, counted from the start by a monotonic
// clock, and returns what to do. The slice is valid until the next Step.
func (e *Engine) Step(now time.Duration, ev Event) []Action {
	clear(e.out)
	e.out = e.out[:0]
	if e.stopped {
		return nil
	}
	e.now = max(e.now, now)
	if failed, ok := ev.(Leased); ok && failed.Err != nil { // which is why the lease lapses
		e.handle(ev)
		e.checkLapse()
	} else {
		e.checkLapse()
		e.handle(ev)
	}
	if e.started && !e.stopped {
		e.plan()
	}
	return e.out
}

func (e *Engine) handle(ev Event) {
	switch ev := ev.(type) {
	case Start:
		e.started, e.signBy = true, e.now+crashSign
		e.lease.nextAt = e.now
	case Tick:
		e.timer = 0
	case Leased:
		e.onLeased(ev)
	case ReadDone:
		e.onRead(ev)
	case Delivered:
		e.onDelivered(ev)
	case Settled:
		e.onSettled(ev)
	case Woke:
		e.onWoke(ev)
	case Pong:
		e.pong = true
	case Drain:
		e.onDrain()
	case ClockJump:
		e.lapse("clock jumped")
		e.forgetLease()
	}
}

func (e *Engine) plan() {
	e.planDrain()
	if e.stopped {
		return
	}
	e.planDeliver()
	e.planSettle()
	e.planFreed()
	e.planRelease()
	e.planLease()
	e.planParked()
	e.planRead()
	e.planWait()
	e.planTimer()
}

func (e *Engine) id() ID {
	e.lastID++
	return e.lastID
}

func (e *Engine) do(a Action) { e.out = append(e.out, a) }
func (e *Engine) tell(f Fact) { e.do(Notify{f}) }
func (e *Engine) stop(err error) {
	e.stopped = true
	e.do(Stopped{Err: err})
}

func (e *Engine) addLane(l *lane) {
	e.lanes[l.id] = l
	at, _ := e.find(l.id)
	e.held = slices.Insert(e.held, at, l)
	e.tell(LaneGained{Lane: l.id, Epoch: l.epoch})
}

// removeLane forgets everything held of a lane. A call in flight is cancelled
// and counted as abandoned until it comes back.
func (e *Engine) removeLane(l *lane, reason string) {
	if l.call != nil {
		e.do(Cancel{ID: l.call.id})
		e.endProbe(l.call)
		l.call.lane = nil
		e.abandoned[l.id]++
		l.call = nil
	}
	for _, b := range l.queue {
		e.forget(l, b)
	}
	l.queue = nil
	delete(e.lanes, l.id)
	if at, ok := e.find(l.id); ok {
		e.held = slices.Delete(e.held, at, at+1)
	}
	e.tell(LaneLost{Lane: l.id, Reason: reason})
}

func (e *Engine) find(id store.Lane) (at int, ok bool) {
	return slices.BinarySearchFunc(e.held, id, func(l *lane, id store.Lane) int { return cmp.Compare(l.id, id) })
}

func (e *Engine) removeAll(reason string) {
	for _, l := range slices.Clone(e.held) {
		e.removeLane(l, reason)
	}
}

func (e *Engine) holds(l *lane) bool { return e.lanes[l.id] == l }
