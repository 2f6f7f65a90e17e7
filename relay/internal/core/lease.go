package core

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider/relay/internal/clock"
	"github.com/postrider/postrider/relay/internal/health"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// leaseState is what the engine knows of its right to work.
type leaseState struct {
	op       port.ID
	sentAt   time.Duration
	leaving  bool // op gives everything back
	valid    bool
	deadline time.Duration // of the right to work, while valid
	nextAt   time.Duration
	failures int
	ever     bool // a lease was granted at least once
	identity string
	releases []store.Release // to be sent, or sent and not answered
	sent     int             // how many of releases are in op
	fair     int
	clock    clock.Ahead
}

var errLate = errors.New("the lease was answered after it had expired")

// checkLapse stops all work when the right to it has run out.
func (e *Engine) checkLapse() {
	if e.lease.valid && e.now >= e.lease.deadline {
		e.lapse("lease expired")
	}
}

// lapse stops sending at once and keeps the lanes: the next grant tells whether another
// instance had them meanwhile. A lane that returns under the same epoch had no other owner:
// acknowledged messages are settled, not sent again, and the epoch fences the settlements.
func (e *Engine) lapse(reason string) {
	ls := &e.lease
	if ls.valid && len(e.held) > 0 {
		renewed := ls.deadline - e.cfg.TTL + e.cfg.TTL/marginShare
		e.tell(port.LeaseLapsed{Lanes: len(e.held), Reason: reason, Since: e.now - renewed, Late: max(e.now-ls.deadline, 0), Outage: e.health.Down})
	}
	ls.valid = false
	for _, l := range e.held {
		if l.call != nil && !l.call.cut {
			l.call.cut = true
			e.do(port.Cancel{ID: l.call.id})
		}
	}
}

// forgetLease asks anew. The answer that is under way would count from before a
// sleep that the monotonic clock has not seen.
func (e *Engine) forgetLease() {
	ls := &e.lease
	ls.nextAt = e.now
	if !ls.leaving {
		ls.op, ls.sent = 0, 0
	}
}

// dropAll forgets the database's history altogether. A settlement on its way was
// carried out before the history changed or never will be. A release without an
// answer is asked for again: a pooler may still carry it out, and it would take a
// lane that was granted anew under the same epoch.
func (e *Engine) dropAll() {
	e.tell(port.HistoryChanged{Lanes: len(e.held), Outage: e.health.Down})
	e.health.Changes()
	e.history++
	e.lease.valid = false
	e.removeAll("identity changed")
	e.settle = nil
	clear(e.floor)
	e.lease.clock.Forget()
	e.forgetLease()
	e.health.Clear(e.now, health.Settle) // a settlement that is forgotten is not waited for
}

// refused drops everything when a call was refused because the database's history
// is another one than that in which the call was made. Calls of the history before
// are refused too, and say nothing of this one: its settlements may be on their way.
//
// It reports whether that was why the call failed: the database did answer then.
func (e *Engine) refused(err error, history uint64) bool {
	if !errors.Is(err, store.ErrIdentity) {
		return false
	}
	if history == e.history {
		e.dropAll()
	}
	return true
}

func (e *Engine) planLease() {
	ls := &e.lease
	if ls.op != 0 || ls.leaving || e.cutOff || (e.now < ls.nextAt && len(ls.releases) == 0) {
		return
	}
	if ls.failures > 0 && e.now < ls.nextAt {
		return
	}
	timeout := e.cfg.TTL / 2
	if !ls.valid {
		timeout = e.cfg.TTL - e.cfg.TTL/marginShare
	}
	e.sendLease(store.LeaseRequest{Release: slices.Clone(ls.releases), Observe: e.draining}, timeout)
	ls.sent = len(ls.releases)
}

func (e *Engine) sendLease(req store.LeaseRequest, timeout time.Duration) {
	req.BootID, req.Instance = e.cfg.BootID, e.cfg.Instance
	req.TTL, req.MaxLanes, req.Only = e.cfg.TTL, e.cfg.MaxLanes, e.cfg.Only
	req.CountParked = e.cfg.MaxParked()
	req.Known = make(map[store.Lane]int64, len(e.held))
	for _, l := range e.held {
		req.Known[l.id] = l.epoch
	}
	e.lease.op, e.lease.sentAt = e.id(), e.now
	e.do(port.Lease{ID: e.lease.op, Req: req, Timeout: timeout})
}

func (e *Engine) onLeased(ev port.Leased) {
	ls := &e.lease
	if ev.ID != ls.op {
		return
	}
	ls.op = 0
	if ls.leaving {
		e.onLeft(ev.Err)
		return
	}
	until := ls.sentAt + e.cfg.TTL - e.cfg.TTL/marginShare
	err := ev.Err
	if err == nil && until <= e.now {
		err = errLate
	}
	if err != nil {
		e.leaseFailed(err)
		return
	}
	ls.releases = slices.Delete(ls.releases, 0, min(ls.sent, len(ls.releases)))
	if ls.ever && ls.identity != ev.Grant.Identity {
		e.dropAll()
	}
	if e.health.Faulty(health.Lease) {
		e.tryAgain()
	}
	e.storeWorks(health.Lease, ls.sentAt)
	ls.sent, ls.failures, ls.ever = 0, 0, true
	ls.identity, ls.valid, ls.deadline = ev.Grant.Identity, true, until
	ls.nextAt = max(ls.sentAt+e.cfg.TTL/heartbeatShare, e.now+e.cfg.TTL/20)
	e.keepTime(ev.Grant.Now)
	e.takeGrant(ev.Grant)
	e.takePause(ev.Grant.Paused)
}

// tryAgain ends the pauses of the other store calls, because leases have recovered after
// one had failed: the store is back, and their pauses have grown during the outage. If
// they fail again, their next pause is longer still.
func (e *Engine) tryAgain() {
	for _, p := range [...]*pause{&e.readHold, &e.parked.hold} {
		p.until = min(p.until, e.now)
	}
	if op := e.settle; op != nil {
		op.pause.until = min(op.pause.until, e.now)
	}
}

// takePause pauses or resumes. What was begun is finished and settled; the rest
// is dropped and read again afterwards, so that a pause holds no memory. The
// instance keeps its lanes: acts of people are executed, and no other one takes over.
func (e *Engine) takePause(on bool) {
	if on != e.paused {
		e.paused = on
		e.tell(port.PipePaused{On: on})
	}
	if !on {
		return
	}
	for _, l := range e.held {
		e.shed(l)
	}
}

// keepTime moves what is due with the database's clock, which decides: ours stands
// still while the machine sleeps, and either may be set.
func (e *Engine) keepTime(now time.Time) {
	if now.IsZero() {
		return
	}
	if moved := e.lease.clock.Told(now, e.lease.sentAt, e.now); moved != 0 {
		for _, l := range e.held {
			l.shift(-moved)
			e.rearm(l)
		}
	}
}

func (e *Engine) leaseFailed(err error) {
	ls := &e.lease
	gone := errors.Is(err, store.ErrNoPipe) // no lease will ever be granted again
	if gone || !ls.ever && (errors.Is(err, store.ErrSchema) || errors.Is(err, store.ErrUnusable)) {
		e.stop(fmt.Errorf("store %s: %w", e.cfg.Store.Name, err))
		return
	}
	e.refused(err, e.history)
	ls.failures++
	limit := min(5*time.Second, e.cfg.TTL/2) // a database that is back is noticed within half a lease
	if ls.valid {                            // every try counts while the lease runs
		limit = e.cfg.TTL / 6
	}
	ls.nextAt = e.now + e.jittered(100*time.Millisecond, limit, ls.failures)
	e.storeFails(health.Lease, ls.sentAt, err)
}

// takeGrant brings the lanes in line with what the database says.
func (e *Engine) takeGrant(g store.Grant) {
	for _, l := range slices.Clone(e.held) {
		if !slices.ContainsFunc(g.Lanes, func(lg store.LaneGrant) bool { return lg.Lane == l.id }) {
			e.removeLane(l, "taken")
		}
	}
	for _, lg := range g.Lanes {
		e.takeLane(lg)
	}
	for _, l := range e.held {
		l.requests = l.requests[:0]
	}
	for _, r := range g.Requests {
		if l := e.lanes[r.Lane]; l != nil && !l.executed.Since(r.ID, e.lease.sentAt) {
			l.requests = append(l.requests, r.ID)
		}
	}
	ls := &e.lease
	ls.fair = len(e.held)
	if g.Instances > 0 && g.Total > 0 {
		req := store.LeaseRequest{MaxLanes: e.cfg.MaxLanes, Only: e.cfg.Only}
		ls.fair = req.Share(g.Total, g.Instances)
	}
	for i, l := range e.held {
		l.releasing = i >= ls.fair && !l.singly()
	}
	if len(e.held) < ls.fair { // someone may have died: look again soon
		ls.nextAt = min(ls.nextAt, max(ls.sentAt+e.cfg.TTL/8, e.now+e.cfg.TTL/20))
	}
	if g.Lapse > 0 { // who lives has renewed it by then, as a rule, and who died is succeeded at once
		ls.nextAt = min(ls.nextAt, e.now+max(g.Lapse, e.cfg.TTL/20))
	}
	e.rate.Share(e.now, e.cfg.Rate, len(e.held), g.Total)
	e.tell(port.LeaseRenewed{Lanes: len(e.held), Total: g.Total, Instances: g.Instances})
}

func (e *Engine) takeLane(lg store.LaneGrant) {
	unanswered := e.settle != nil && e.settle.has(lg.Lane)
	if l := e.lanes[lg.Lane]; l != nil {
		newest := l.epoch
		if unanswered {
			newest++ // the settlement may have been committed already
		}
		if lg.Epoch <= newest {
			return
		}
		e.removeLane(l, "taken")
	}
	// While a settlement's fate is unknown its position is too, and an older
	// epoch than one that was settled is an answer from before. One without the
	// view was given when we held the lane, and is asked for again.
	released := slices.ContainsFunc(e.lease.releases, func(r store.Release) bool { return r.Lane == lg.Lane })
	if unanswered || released || lg.Known || e.draining || lg.Epoch < e.floor[lg.Lane] {
		return
	}
	l := e.newLane(lg)
	e.addLane(l)
	e.obey(l, lg.Parked.Paused)
}

// planRelease gives back the surplus lanes that have nothing left to do.
func (e *Engine) planRelease() {
	if !e.lease.valid || e.draining {
		return
	}
	for i := 0; i < len(e.held); i++ {
		l := e.held[i]
		if !l.releasing {
			continue
		}
		e.shed(l)
		if len(l.queue) == 0 && l.call == nil && e.abandoned[l.id] == 0 && !e.goesOn(l) {
			if n := l.ahead.Clear(); n > 0 {
				e.tell(port.DrainCutOff{Messages: n})
			}
			e.lease.releases = append(e.lease.releases, store.Release{Lane: l.id, Epoch: l.epoch})
			e.removeLane(l, "released")
			i-- // the next one has moved up
		}
	}
}
