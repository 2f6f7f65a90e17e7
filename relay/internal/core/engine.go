package core

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/postrider/postrider/relay/internal/blame"
	"github.com/postrider/postrider/relay/internal/brake"
	"github.com/postrider/postrider/relay/internal/captive"
	"github.com/postrider/postrider/relay/internal/health"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/relay/internal/rate"
	"github.com/postrider/postrider/store"
)

// Engine is the state machine of one instance. It is not safe for concurrent use.
type Engine struct {
	cfg       port.Config
	rng       *rand.Rand
	now       time.Duration
	out       []port.Action
	lastID    port.ID
	started   bool
	startedAt time.Duration
	stopped   bool

	lanes map[store.Lane]*lane
	held  []*lane // the same in ascending order

	lease   leaseState
	history uint64    // counts the database's histories that were dropped
	settle  *settleOp // at most one, kept until it is answered
	floor   map[store.Lane]int64

	reads     map[port.ID]*readOp
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

	calls     map[port.ID]*call
	abandoned map[store.Lane]int // cancelled calls that have not come back
	acked     health.Topics
	lastAck   time.Duration // when an acknowledgement came last
	ackSentAt time.Duration // start of the latest call that brought one
	anyAck    bool
	watched   health.Places
	wary      bool          // some lane may have something to send alone
	only      *lane         // the lane that does so now, nil: none
	aloneAt   time.Duration // when its turn began
	freeUntil time.Duration // the others have their turn until then
	pong      bool          // a ping was answered
	rate      rate.Limit
	turn      int        // lane index that delivers first, so that probes rotate
	probed    store.Lane // of the last probe that failed
	blamed    blame.Dead // dead letters of outages and silence at a place since one of them ended
	scopes    map[string]*scope
	rows      brake.Rows
	dests     blame.Routes
	restFrom  time.Duration // until then no scope could be tried

	waiting   port.ID
	pollDelay time.Duration

	paused     bool // by a person, the whole pipe
	draining   bool
	drainUntil time.Duration
	cutOff     bool // the drain deadline has passed

	health health.Store
	sink   health.Sink
	places health.Destinations

	timer time.Duration // what was asked for last, 0: nothing
}

// New returns an engine that waits for Start.
func New(cfg port.Config, seed uint64) *Engine {
	cfg = cfg.WithDefaults()
	return &Engine{
		cfg: cfg, rate: rate.Limit{PerSecond: cfg.Rate},
		rng:       rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)),
		lanes:     map[store.Lane]*lane{},
		floor:     map[store.Lane]int64{},
		reads:     map[port.ID]*readOp{},
		calls:     map[port.ID]*call{},
		abandoned: map[store.Lane]int{},
		scopes:    map[string]*scope{},
		dests:     blame.Routes{},
		watched:   health.Places{},
		places:    health.Destinations{},
		blamed:    blame.Dead{},
		pollDelay: cfg.PollMin,
		avgSize:   512,
		parked:    parkedReads{pace: captive.NewPace()},
	}
}

// Step takes one event at a time now, counted from the start by a monotonic
// clock, and returns what to do. The slice is valid until the next Step.
func (e *Engine) Step(now time.Duration, ev port.Event) []port.Action {
	clear(e.out)
	e.out = e.out[:0]
	if e.stopped {
		return nil
	}
	e.now = max(e.now, now)
	if failed, ok := ev.(port.Leased); ok && failed.Err != nil { // which is why the lease lapses
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

func (e *Engine) handle(ev port.Event) {
	switch ev := ev.(type) {
	case port.Start:
		e.started, e.startedAt = true, e.now
		e.lease.nextAt = e.now
	case port.Tick:
		e.timer = 0
	case port.Leased:
		e.onLeased(ev)
	case port.ReadDone:
		e.onRead(ev)
	case port.Delivered:
		e.onDelivered(ev)
	case port.Settled:
		e.onSettled(ev)
	case port.Woke:
		e.onWoke(ev)
	case port.Pong:
		e.pong = true
	case port.Drain:
		e.onDrain()
	case port.ClockJump:
		e.lapse("clock jumped")
		e.forgetLease()
	}
}

func (e *Engine) plan() {
	e.planDrain()
	if e.stopped {
		return
	}
	e.planViews()
	e.planDeliver()
	e.planSettle()
	e.planScopes()
	e.planFreed()
	e.planRelease()
	e.planLease()
	e.planParked()
	e.planRead()
	e.planWait()
	e.planHealth()
	e.planTimer()
}

func (e *Engine) id() port.ID {
	e.lastID++
	return e.lastID
}

func (e *Engine) do(a port.Action) { e.out = append(e.out, a) }
func (e *Engine) tell(f port.Fact) { e.do(port.Notify{Fact: f}) }
func (e *Engine) stop(err error) {
	e.stopped = true
	e.do(port.Stopped{Err: err})
}

func (e *Engine) addLane(l *lane) {
	e.lanes[l.id], l.held = l, true
	at, _ := e.find(l.id)
	e.held = slices.Insert(e.held, at, l)
	e.tell(port.LaneGained{Lane: l.id, Epoch: l.epoch})
}

// removeLane forgets everything held of a lane. A call in flight is cancelled
// and counted as abandoned until it comes back.
func (e *Engine) removeLane(l *lane, reason string) {
	if l.call != nil {
		e.do(port.Cancel{ID: l.call.id})
		e.endProbe(l.call)
		l.call.lane = nil
		e.abandoned[l.id]++
		l.call = nil
	}
	for _, b := range l.queue {
		e.forget(l, b)
	}
	l.queue, l.held = nil, false
	delete(e.lanes, l.id)
	if at, ok := e.find(l.id); ok {
		e.held = slices.Delete(e.held, at, at+1)
	}
	e.tell(port.LaneLost{Lane: l.id, Reason: reason})
}

func (e *Engine) find(id store.Lane) (at int, ok bool) {
	return slices.BinarySearchFunc(e.held, id, func(l *lane, id store.Lane) int { return cmp.Compare(l.id, id) })
}

func (e *Engine) removeAll(reason string) {
	for _, l := range slices.Clone(e.held) {
		e.removeLane(l, reason)
	}
}
