package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/core"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
)

// node is one relay instance: it carries out the actions of a core and hands
// the answers back, late, never or twice as the plan says.
type node struct {
	w     *world
	index int
	rate  float64 // of its monotonic clock

	boot      string // "" while down
	engine    *core.Engine
	store     *memstore.Store
	began     time.Duration // when this boot started
	slept     time.Duration // how long its machine slept since
	wall      time.Duration // how far its wall clock is off
	timer     uint64        // generation of the armed timer
	drained   bool          // asked to end
	drainFrom time.Duration // when, or when it continued after a pause since

	pausedAt    time.Duration
	pausedUntil time.Duration // 0: runs
	suspended   bool
	queue       []event
	sessions    map[port.ID]*session
	sent        map[store.Lane]map[string]int // calls of this boot that the broker did not refuse, by message, perhaps not settled
	told        facts
	identity    string          // of the last lease that was answered
	knowing     *memstore.Store // the store as of that identity

	waits  port.ID       // the newest Wait
	stream int           // counts the log's streams that were opened or broke
	hearAt time.Duration // when the stream tells next
}

var (
	errStore = errors.New("simulated: the store failed")
	errSlow  = errors.New("simulated: no answer in time")
)

func (n *node) start() {
	if n.boot != "" {
		return
	}
	w := n.w
	w.boots++
	n.boot = fmt.Sprintf("boot-%d", w.boots)
	n.began, n.slept, n.wall, n.drained = w.now, 0, 0, false
	n.sessions, n.queue = map[port.ID]*session{}, nil
	n.sent = map[store.Lane]map[string]int{}
	n.told, n.identity = newFacts(), ""
	n.store = w.db.Pipe(memstore.DefaultPipe)
	n.store.ClientClock(func() time.Time { return origin().Add(w.now + n.wall) })
	n.knowing = n.store.Knowing("")
	n.engine = core.New(n.config(), w.plan.Seed*31+uint64(w.boots))
	if w.plan.Ahead {
		n.streams(n.boot)
	}
	if x := w.plan.Wide; x != nil && x.Delays {
		w.ping(n, n.boot)
	}
	w.note("boot", n.index, uint64(w.boots))
	n.step(port.Start{})
}

func (n *node) config() port.Config {
	p := n.w.plan
	c := port.Config{
		BootID: n.boot, Instance: fmt.Sprintf("node-%d", n.index),
		TTL: leaseTTL, DeliverTimeout: time.Second, StoreTimeout: time.Second, DrainTimeout: 4 * time.Second,
		Window: p.Window, Page: p.Page, Brake: p.Brake, ParkedKeys: p.ParkedKeys,
		PollMin: 50 * time.Millisecond, PollMax: 500 * time.Millisecond,
		SettleAfter: 80 * time.Millisecond, SettleAtMax: 300 * time.Millisecond,
		Retry:      port.Backoff{Base: 100 * time.Millisecond, Max: 800 * time.Millisecond, MaxAttempts: p.MaxAttempts},
		OutageBase: 50 * time.Millisecond, OutageMax: 500 * time.Millisecond,
		Store: n.store.Info(), Sink: broker.Info{Name: "simulated"},
	}
	if p.Skip || n.w.mutant.deadFlows {
		c.Policy = func(string) port.Policy { return port.Skip }
	}
	if n.w.mutant.onePlace {
		c.Place = func(*postrider.Message) string { return "anywhere" }
	}
	if p.Ahead {
		c.PollMin, c.SettleAfter, c.SettleAtMax = 10*time.Millisecond, 300*time.Millisecond, 600*time.Millisecond
	}
	if p.Wide != nil {
		p.Wide.configure(&c, &p, n.index)
	}
	if n.w.mutant.hasty {
		c.Rate = 0
	}
	if n.w.mutant.restless {
		c.PollMin, c.PollMax = time.Microsecond, time.Microsecond
	}
	if n.w.mutant.wideWindow {
		c.Window, c.Page = 1<<20, 1<<10
	}
	return c
}

// mono is the node's clock as the core sees it.
func (n *node) mono() time.Duration {
	t := n.w.now - n.began - n.slept
	if n.suspended {
		t -= n.w.now - n.pausedAt
	}
	if n.w.mutant.wallClock {
		t = n.w.now - n.began + n.wall
	}
	return time.Duration(float64(t) * n.rate)
}

// step gives the core one event and does what it asks for.
func (n *node) step(ev port.Event) {
	n.w.cover.Steps++
	for _, a := range n.engine.Step(n.mono(), ev) {
		n.asks()
		n.act(a)
		if n.boot == "" {
			return
		}
	}
	n.counted(ev)
}

// post delivers an event to this boot after d; it waits while the node is paused.
func (n *node) post(d time.Duration, ev port.Event) {
	n.w.events.push(n.w.now+max(d, 0), event{n: n, boot: n.boot, ev: ev})
}

func (n *node) receive(boot string, ev port.Event) {
	switch {
	case n.boot != boot:
	case n.w.now < n.pausedUntil:
		n.queue = append(n.queue, event{n: n, boot: boot, ev: ev})
	default:
		name, count := eventName(ev)
		n.w.note(name, n.index, uint64(count))
		if n.w.traceOn {
			n.w.notef(n.index, "<- %T %+v", ev, ev)
		}
		if l, ok := ev.(port.Leased); ok && l.Err == nil && n.identity != l.Grant.Identity {
			n.identity = l.Grant.Identity
			n.knowing = n.store.Knowing(n.identity)
		}
		if r, ok := ev.(port.ReadDone); ok {
			for i := range r.Batches {
				if r.Batches[i].Ahead {
					n.w.cover.Ahead += len(r.Batches[i].Messages)
				}
			}
		}
		n.step(ev)
	}
}

// eventName names an event and counts what it brings.
func eventName(ev port.Event) (string, int) {
	switch ev := ev.(type) {
	case port.Leased:
		return "leased", len(ev.Grant.Lanes)
	case port.ReadDone:
		return "read", len(ev.Batches)
	case port.Delivered:
		return "delivered", len(ev.Errs)
	case port.Settled:
		return "settled", len(ev.Lost)
	case port.Woke:
		return "woke", 0
	case port.Tick:
		return "tick", 0
	}
	return "told", 0
}

// act carries out one action.
func (n *node) act(a port.Action) {
	if n.w.traceOn {
		n.w.notef(n.index, "-> %T %+v", a, a)
	}
	switch a := a.(type) {
	case port.Lease:
		n.call(a.Timeout, func() port.Event {
			g, err := n.leaseAs(a.Req)
			return port.Leased{ID: a.ID, Grant: g, Err: err}
		}, func(err error) port.Event { return port.Leased{ID: a.ID, Err: err} })
	case port.Read:
		st := n.knowing
		n.call(a.Timeout, func() port.Event {
			if n.w.mutant.stalls && n.w.partlyDown() && !a.Reads[0].Parked {
				return port.ReadDone{ID: a.ID}
			}
			b, err := st.Read(n.w.ctx, a.Reads)
			return port.ReadDone{ID: a.ID, Batches: n.w.mutant.read(b), Err: err}
		}, func(err error) port.Event { return port.ReadDone{ID: a.ID, Err: err} })
	case port.Settle:
		n.settle(a)
	case port.Deliver:
		n.deliver(a)
	case port.Cancel:
		c := n.told.calls[a.ID]
		n.w.check.incident(c.lane) // its answer may be lost, whatever it was
		c.cancelled = true
		n.told.calls[a.ID] = c
		if s := n.sessions[a.ID]; s != nil {
			s.cancel()
		}
	case port.Wait:
		n.waits = a.ID
		n.post(min(a.Max, time.Duration(n.w.rng.Int64N(int64(a.Max)+1))+a.Max/2), port.Woke{ID: a.ID})
	case port.Timer:
		n.arm(a.At)
	case port.Notify:
		n.notice(a.Fact)
	case port.Stopped:
		n.stopped(a.Err)
	}
}

func (n *node) leaseAs(req store.LeaseRequest) (store.Grant, error) {
	before := n.w.db.Held()
	g, err := n.store.Lease(n.w.ctx, req)
	if n.w.mutant.deafToActs && n.w.partlyDown() {
		g.Requests = nil
	}
	for i := range g.Lanes {
		if n.w.mutant.deafToDeaths {
			g.Lanes[i].Crashes = 0
		}
	}
	for i, owner := range n.w.db.Held() {
		if before[i] != owner && owner == req.BootID && !req.Leave {
			n.w.check.taken(store.Lane(i))
		}
	}
	return g, err
}

// call sends a request to the store and the answer back, with the faults of the
// moment. The request is carried out even when its sender dies meanwhile.
func (n *node) call(timeout time.Duration, run func() port.Event, failed func(error) port.Event) {
	w := n.w
	there, back := w.latency(), w.latency()
	boot := n.boot
	answer := func(ev port.Event) {
		if n.boot == boot {
			n.post(back, ev)
		}
	}
	switch {
	case w.hit(opStoreDown):
		n.post(there+back, failed(errStore))
	case w.hit(opStoreLost):
		w.cover.LostAnswers++
		w.after(there, func() { run(); answer(failed(errStore)) })
	case timeout > 0 && w.hit(opStoreLate):
		w.cover.LateCalls++
		n.post(timeout, failed(errSlow))
		w.after(timeout+time.Duration(w.rng.Int64N(int64(leaseTTL))), func() { run() })
	default:
		w.after(there, func() { answer(run()) })
	}
}

func (n *node) settle(a port.Settle) {
	st := n.knowing
	n.told.settle[a.ID] = a.Settlements
	a.Settlements = n.w.mutant.settling(a.Settlements, n.w.marks)
	n.call(a.Timeout, func() port.Event {
		lost, err := st.Settle(n.w.ctx, a.Settlements)
		n.w.check.settled(a.Settlements, lost, err)
		if n.w.mutant.ignoreLost {
			lost = nil
		}
		return n.w.mutant.settled(port.Settled{ID: a.ID, Lost: lost, Err: err})
	}, func(err error) port.Event { return n.w.mutant.settled(port.Settled{ID: a.ID, Err: err}) })
}

// arm sets the timer; the monotonic clock of the node decides when it fires.
func (n *node) arm(at time.Duration) {
	n.timer++
	n.wind(at, n.timer, n.boot)
}

func (n *node) wind(at time.Duration, gen uint64, boot string) {
	wait := time.Duration(float64(at-n.mono())/n.rate) + time.Microsecond
	n.w.after(max(wait, 0), func() {
		switch {
		case n.boot != boot || n.timer != gen:
		case n.mono() < at: // the machine slept
			n.wind(at, gen, boot)
		default:
			n.receive(boot, port.Tick{})
		}
	})
}

func (n *node) notice(f port.Fact) {
	n.tells(n.w.mutant.fact(f))
	switch f := f.(type) {
	case port.LaneLost:
		delete(n.sent, f.Lane) // the window counts anew in a new tenure
		if f.Reason == "taken" || f.Reason == "identity changed" {
			n.w.check.incident(f.Lane)
		}
	case port.LeaseLapsed: // no incident: only what was cut off may come twice
		n.w.cover.Lapses++
		if n.unsettled() {
			n.w.cover.LapsesUnsettled++
		}
	case port.DrainCutOff:
		n.w.cover.DrainsCutOff++
		n.incidents()
	case port.BrakeChanged:
		if f.On {
			n.w.cover.Brakes++
		}
	case port.LanePaused:
		if f.On && f.Reason != port.PausedByPerson {
			n.w.cover.Pauses++
		}
	case port.RecordParked:
		if f.State == store.Retry {
			n.w.cover.ParkedRetries++
		}
	}
}

// stopped ends a boot whose core has no more to do.
func (n *node) stopped(err error) {
	if err != nil {
		n.w.check.fail("S", "node %d stopped: %v", n.index, err)
		return
	}
	if !n.drained {
		n.w.check.fail("S", "node %d stopped without being asked", n.index)
		return
	}
	n.w.cover.Drains++
	n.down()
	if n.w.healed {
		n.w.after(100*time.Millisecond, n.start)
	}
}

func (n *node) down() {
	n.boot, n.engine, n.queue, n.pausedUntil, n.suspended = "", nil, nil, 0, false
	for _, s := range n.inOrder() {
		s.detach()
	}
}

// crash is a SIGKILL. What was on the wire may still arrive.
func (n *node) crash() {
	if n.boot == "" {
		return
	}
	n.w.cover.Kills++
	if n.unsettled() {
		n.w.cover.KillsUnsettled++
	}
	n.incidents()
	n.down()
}

// pause stops the process, or its machine and monotonic clock too.
func (n *node) pause(d time.Duration, suspend bool) {
	if n.boot == "" || n.w.now < n.pausedUntil {
		return
	}
	boot, until := n.boot, n.w.now+d
	n.incidents()
	n.pausedAt, n.pausedUntil, n.suspended = n.w.now, until, suspend
	for _, s := range n.inOrder() {
		s.wire = n.w.rng.IntN(3)
	}
	n.w.at(n.pausedUntil, func() {
		if n.boot == boot && n.pausedUntil == until {
			n.resume()
		}
	})
}

// resume continues where the pause began: with what came in meanwhile, in order.
func (n *node) resume() {
	if n.boot == "" || n.pausedUntil == 0 {
		return
	}
	if n.tookOver() {
		n.w.cover.Zombies++
	}
	boot := n.boot
	if n.suspended {
		n.slept += n.w.now - n.pausedAt
	}
	jumped := n.suspended && !n.w.mutant.wallClock && !n.w.mutant.deafToJumps
	n.pausedUntil, n.suspended, n.drainFrom = 0, false, n.w.now
	if jumped {
		n.receive(boot, port.ClockJump{})
	}
	queue := n.queue
	n.queue = nil
	for _, e := range queue {
		n.receive(e.boot, e.ev)
	}
}

// jump steps the wall clock; a driver that watches both clocks says so.
func (n *node) jump(d time.Duration) {
	if n.boot == "" {
		return
	}
	n.incidents()
	n.wall += d
	if !n.w.mutant.wallClock && !n.w.mutant.deafToJumps {
		n.receive(n.boot, port.ClockJump{})
	}
}

// drain asks for an orderly end and starts the node again later.
func (n *node) drain(later time.Duration) {
	if n.boot == "" || n.drained {
		return
	}
	n.drained, n.drainFrom = true, n.w.now
	n.mustEnd(n.boot)
	n.receive(n.boot, port.Drain{})
	n.w.after(later+drainLimit, n.start)
}

// drainLimit is more than a drain may take.
const drainLimit = 6 * time.Second

// mustEnd checks that a boot ends in time, not counting what it was paused.
func (n *node) mustEnd(boot string) {
	n.w.at(max(n.drainFrom, n.pausedUntil)+drainLimit, func() {
		switch {
		case n.boot != boot:
		case n.w.now < max(n.drainFrom, n.pausedUntil)+drainLimit:
			n.mustEnd(boot)
		default:
			n.w.check.fail("S", "node %d did not end within its drain timeout", n.index)
		}
	})
}
