package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// world is everything outside the cores: time, the database, the sink, people.
type world struct {
	plan     plan
	mutant   mutant
	ctx      context.Context
	rng      *rand.Rand
	now      time.Duration
	events   queue
	healed   bool
	settleBy time.Duration
	ahead    time.Duration // how far the database's clock is
	latest   time.Duration // the latest time that it has shown
	stepAt   time.Duration // when it stepped last, 0: never
	restBy   time.Duration // when all that was reported must have ended, 0: it has

	db        *memstore.Store
	admin     ops.Admin // of db
	nodes     []*node
	writer    writer
	sink      sink
	check     checker
	active    []op // faults with a share or a topic that hold now
	cover     Coverage
	boots     int
	failovers int
	marks     map[int64]int // of mutants that change them
	hash      uint64
	trace     []string
	traceOn   bool
}

// origin is virtual time zero by the database's clock.
func origin() time.Time { return time.Unix(1_700_000_000, 0) }

func newWorld(ctx context.Context, p plan, m mutant, traced bool) *world {
	w := &world{plan: p, mutant: m, ctx: ctx, traceOn: traced, hash: 14695981039346656037}
	w.rng = rand.New(rand.NewPCG(p.Seed, 0x776f726c64))
	w.db = memstore.New(&memstore.Options{
		Lanes: p.Lanes, Family: p.Family, Defect: m.defect, Log: p.Ahead,
		Now:  func() time.Time { return origin().Add(w.clock()) },
		Step: w.interleave,
	})
	w.admin = w.db.Office().Admin
	w.sink.w, w.check.w, w.writer.w = w, w, w
	w.sink.prefix = !m.noPrefix
	w.check.init()
	w.marks = map[int64]int{}
	for i := range p.Nodes {
		w.nodes = append(w.nodes, &node{w: w, index: i, rate: 1 + (w.rng.Float64()-0.5)*float64(max(p.Drift, 1))/100})
	}
	return w
}

// at runs fn at time t, or now if that has passed.
func (w *world) at(t time.Duration, fn func()) {
	w.events.push(max(t, w.now), event{fn: fn})
}

func (w *world) after(d time.Duration, fn func()) { w.at(w.now+d, fn) }

// latency is the time of one way over the network.
func (w *world) latency() time.Duration {
	return time.Millisecond/4 + time.Duration(w.rng.Int64N(int64(w.plan.Latency)))
}

func (w *world) chance(n, of int) bool { return w.rng.IntN(of) < n }

// note mixes what happened into the hash of the run, and keeps it as text in a
// traced run.
func (w *world) note(what string, node int, n uint64) {
	w.mix(uint64(w.now))
	w.mix(uint64(node))
	w.mix(n)
	for i := range len(what) {
		w.mix(uint64(what[i]))
	}
	if w.traceOn {
		w.trace = append(w.trace, fmt.Sprintf("%12v node %d %s %d", w.now, node, what, n))
	}
}

func (w *world) notef(node int, format string, args ...any) {
	if w.traceOn {
		w.trace = append(w.trace, fmt.Sprintf("%12v node %d ", w.now, node)+fmt.Sprintf(format, args...))
	}
}

func (w *world) mix(v uint64) { w.hash = (w.hash ^ v) * 1099511628211 }

// interleave lets a writer act in the middle of a read of the database, and a
// broken settlement fail between its halves.
func (w *world) interleave(p memstore.Point) error {
	if p == memstore.MidSettle {
		if !w.healed && w.chance(1, 4) {
			return errStore
		}
		return nil
	}
	if w.healed || !w.chance(1, 4) {
		return nil
	}
	n := 1
	if p == memstore.BetweenLooks { // long enough for whole transactions
		n += w.rng.IntN(8)
	}
	for range n {
		w.writer.step()
	}
	return nil
}

// run carries the plan out and returns the first broken promise.
func (w *world) run() *violation {
	for _, o := range w.plan.Ops {
		if o.Kind == opTx {
			w.writer.plan(o)
			continue
		}
		w.at(o.At, func() { w.perform(o) })
	}
	w.writer.schedule()
	w.at(w.plan.faults(), w.heal)
	w.settleBy = w.plan.settled()
	w.watchDuring()
	for len(w.events.heap) > 0 && w.check.broken == nil {
		at, e := w.events.pop()
		if at > w.settleBy {
			break
		}
		w.now = at
		if e.fn != nil {
			e.fn()
		} else {
			e.n.receive(e.boot, e.ev)
		}
	}
	if w.check.broken == nil {
		w.check.atEnd()
	}
	return w.check.broken
}

// perform carries out one operation of the plan.
func (w *world) perform(o op) {
	w.note(opNames[o.Kind], o.Node, uint64(o.N))
	switch o.Kind {
	case opStart:
		w.nodes[o.Node].start()
	case opCrash:
		w.nodes[o.Node].crash()
		w.after(o.Dur, w.nodes[o.Node].start)
	case opPause:
		w.nodes[o.Node].pause(o.Dur, false)
	case opSuspend:
		w.nodes[o.Node].pause(o.Dur, true)
	case opJump:
		w.nodes[o.Node].jump(o.Dur)
	case opDrain:
		w.nodes[o.Node].drain(o.Dur)
	case opAct:
		w.check.act(o.N)
	case opFailover:
		w.failover(o)
	case opHold:
		w.check.hold(o)
	case opStep:
		w.moveClock(o.Dur)
	case opStop:
		w.db.Pause(true)
		w.cover.Stops++
		w.after(o.Dur, func() { w.db.Pause(false) })
	default:
		w.active = append(w.active, o)
	}
}

// failover gives the database another identity, with calls on their way, and
// lets it answer nobody for a while.
func (w *world) failover(o op) {
	w.failovers++
	w.cover.Failovers++
	if slices.ContainsFunc(w.nodes, (*node).unsettled) {
		w.cover.FailoversUnsettled++
	}
	if w.plan.Ahead {
		w.writer.lose()
	}
	w.db.ChangeIdentity(fmt.Sprintf("memory/%d", 1+w.failovers))
	w.active = append(w.active, op{Kind: opStoreDown, At: o.At, Dur: o.Dur, N: 1000})
}

// hit reports whether a fault of this kind strikes now. topic is compared with
// N where the fault has a topic.
func (w *world) hit(k opKind) bool {
	for i := range w.active {
		o := &w.active[i]
		if o.Kind == k && w.now < o.At+o.Dur && w.chance(o.N, 1000) {
			return true
		}
	}
	return false
}

// holds reports the fault of this kind that covers a topic now.
func (w *world) holds(k opKind, topic int) (op, bool) {
	for _, o := range w.active {
		if o.Kind == k && w.now < o.At+o.Dur && (o.N < 0 || o.N == topic) {
			return o, true
		}
	}
	return op{}, false
}

// clock is what the database's clock shows, and notes the latest.
func (w *world) clock() time.Duration {
	now := w.now + w.ahead
	w.latest = max(w.latest, now)
	return now
}

// moveClock steps it. Leases run out at once, or later: lanes have two owners for a while.
func (w *world) moveClock(by time.Duration) {
	w.clock()
	w.ahead += by
	w.stepAt = w.now
	for l := range w.plan.Lanes {
		w.check.incident(store.Lane(l))
	}
}

func (w *world) stepped() bool { return w.stepAt > 0 && w.now < w.stepAt+2*leaseTTL }

// ping tells a node that the sink answers, unless the whole of it is down.
func (w *world) ping(n *node, boot string) {
	w.after(w.latency(), func() {
		switch _, down := w.holds(opOutage, -1); {
		case n.boot != boot:
		case down:
			w.after(time.Second, func() { w.ping(n, boot) })
		default:
			n.post(0, port.Pong{})
		}
	})
}

// partlyDown reports whether a single destination is down now.
func (w *world) partlyDown() bool {
	return slices.ContainsFunc(w.active, func(o op) bool { return o.Kind == opOutage && o.N >= 0 && w.now < o.At+o.Dur })
}

// heal ends all faults, starts whoever is down and lets good messages flow, so
// that whatever can move on does.
func (w *world) heal() {
	w.note("heal", -1, 0)
	w.healed, w.active = true, nil
	w.db.Pause(false)
	for _, n := range w.nodes {
		n.resume()
		n.start()
	}
	w.writer.finish()
	w.watch()
}

// watch ends the run as soon as nothing is left to do, and writes good messages
// until then.
func (w *world) watch() {
	switch {
	case w.now > w.plan.faults()+w.plan.tail() && w.check.quiet():
		if !w.plan.rests() || w.check.restless() == "" {
			w.events.clear()
			return
		}
		if w.restBy == 0 { // reported states must end although nothing is sent any more
			w.restBy = w.now + w.plan.rest()
			w.settleBy = max(w.settleBy, w.restBy)
		}
	case w.goodTime():
		w.writer.good()
	}
	w.after(time.Second, w.watch)
}

// goodTime leaves gaps without good messages, in which a run can end.
func (w *world) goodTime() bool {
	since, most, turn := w.now-w.plan.faults(), 7*time.Second, 10*time.Second
	if x := w.plan.Wide; x != nil {
		if most = time.Second; x.Rate > 0 { // less than what the rate allows
			turn = time.Minute
		}
	}
	return since%turn < most && w.now < w.settleBy-10*time.Second
}
