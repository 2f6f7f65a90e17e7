package core

import (
	"math"
	"slices"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/health"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

func (e *Engine) onDrain() {
	if e.draining {
		return
	}
	e.draining = true
	e.drainUntil = e.now + e.cfg.DrainTimeout
	if !e.started {
		e.stop(nil)
	}
}

// planDrain sheds what was not begun and leaves once all is settled or the
// deadline has passed.
func (e *Engine) planDrain() {
	if !e.draining {
		return
	}
	e.shedAll()
	if !e.cutOff && (e.now >= e.drainUntil || e.now >= e.storeGone()) {
		e.cutOff = true
		for _, l := range e.held {
			if l.call != nil {
				e.do(port.Cancel{ID: l.call.id})
			}
		}
		e.drainUntil = e.now + 500*time.Millisecond // for a last settle and the leave
	} else if e.cutOff && e.now >= e.drainUntil {
		e.tellUnsettled()
		e.stop(nil)
		return
	}
	if e.quiet() {
		e.leave()
	}
}

// shedAll drops what a drain need not wait for, and reports what was acknowledged
// of it: a batch that was begun is dropped when the drain is cut off without a lease.
func (e *Engine) shedAll() {
	lost := 0
	for _, l := range e.held {
		if late := e.now >= e.drainUntil-e.cfg.DrainTimeout*4/5; l.owes() && (e.cutOff || !e.goesOn(l) || late && e.holdsBack(l)) { // the table will not be read
			lost += l.ahead.Clear()
		}
		e.parkRest(l)
		if e.cutOff && !e.lease.valid && l.call == nil {
			lost += l.begun()
		}
		e.shed(l)
	}
	if lost > 0 {
		e.tell(port.DrainCutOff{Messages: lost})
	}
}

// parkRest sets the rest of a begun batch aside when it is held back, so that the
// batch can be settled. Dropped, the next owner would send all of it again: a
// duplicate without a fault.
func (e *Engine) parkRest(l *lane) {
	if l.call != nil || l.done >= len(l.queue) || !e.lease.valid {
		return
	}
	b := l.queue[l.done]
	if b.ahead {
		return
	}
	if b.marked && !b.sent { // the attempt that is recorded is not made
		e.postpone(l, b, e.now)
		return
	}
	if !b.started() || b.resolved() || !e.cutOff && !e.holdsBack(l) {
		return
	}
	b.goSlow()
	if !b.prepared {
		e.setAside(l, b)
	}
	rest := b.todo
	b.todo = nil
	for _, i := range rest {
		switch m := &b.msgs[i]; {
		case b.parked: // it stands there already
		case l.holds(b, m.Key):
			e.wait(l, b, i)
		default:
			s, err := e.scopes[e.destination(e.placeOf(m))], (*broker.Error)(nil)
			if s == nil {
				s, err = &scope{}, broker.Classify(broker.Outage(errShutDown, "", ""))
			}
			e.divertNow(l, b, i, s, err)
		}
	}
	e.finish(l)
}

// storeGone is when a drain gives the database up: the lease ran out, and for
// another whole one nothing was answered. Until then a restart of the database
// costs no duplicates; afterwards the deliveries have been cut off long ago, and
// to wait would only hold up whoever waits for this process.
func (e *Engine) storeGone() time.Duration {
	ls := &e.lease
	if ls.valid || !ls.ever || ls.failures == 0 {
		return math.MaxInt64
	}
	return ls.deadline + e.cfg.TTL
}

// tellUnsettled says what a drain leaves that the sink has acknowledged.
func (e *Engine) tellUnsettled() {
	n := 0
	for _, l := range e.held {
		n += l.doneMsgs + l.begun()
	}
	if e.settle != nil {
		n += e.settle.messages
	}
	if n > 0 {
		e.tell(port.DrainCutOff{Messages: n})
	}
}

func (e *Engine) quiet() bool {
	if e.settle != nil && e.lease.valid {
		return false
	}
	for _, l := range e.held {
		if len(l.queue) > 0 || l.call != nil || l.owes() {
			return false
		}
	}
	return len(e.calls) == 0 || e.cutOff
}

// leave gives every lane back. A lease in flight is waited for first, else its
// late arrival could take lanes for an instance that has gone.
func (e *Engine) leave() {
	if e.lease.op != 0 || e.lease.leaving {
		return
	}
	if !e.lease.ever {
		e.stop(nil)
		return
	}
	releases := slices.Clone(e.lease.releases)
	for _, l := range e.held {
		releases = append(releases, store.Release{Lane: l.id, Epoch: l.epoch})
	}
	e.removeAll("released")
	e.lease.leaving = true
	e.drainUntil = min(e.drainUntil, e.now+e.cfg.TTL)
	e.cutOff = true
	e.sendLease(store.LeaseRequest{Release: releases, Leave: true}, max(e.drainUntil-e.now, e.cfg.TTL/4))
}

// onLeft ends the engine. When leaving failed the lease runs out by itself.
func (e *Engine) onLeft(err error) {
	if err != nil {
		e.storeFails(health.Lease, e.lease.sentAt, err)
	}
	e.stop(nil)
}

// begun is how much of the lane's current batch was acknowledged.
func (l *lane) begun() int {
	if l.done >= len(l.queue) {
		return 0
	}
	return l.queue[l.done].delivered
}

// holdsBack reports whether the lane's deliveries pause, or the sink's.
func (e *Engine) holdsBack(l *lane) bool { return e.now < max(l.hold.until, l.resumes) || e.sinkHeld() }

// shed drops the batches of a lane that were not begun: the next owner sends them.
// A batch of which something was acknowledged is kept, since to send it again would
// be a duplicate without a fault. A hand-over waits for it, parkRest ends it in a drain.
func (e *Engine) shed(l *lane) {
	e.forgetAhead(l)
	if e.goesOn(l) && e.ending(l) { // the table brings it, behind these batches at the latest
		return
	}
	keep := l.done
	if l.call != nil {
		keep++
	} else if l.done < len(l.queue) {
		b := l.queue[l.done]
		switch {
		case b.marking: // the attempt that is recorded would stand
			keep++
		case e.paused && !e.draining && b.sent: // read again it might come in another company, above the window
			keep++
		case b.started() && !e.cutOff && (!e.holdsBack(l) || e.draining || b.delivered > 0):
			keep++
		}
	}
	if keep == len(l.queue) {
		return
	}
	for _, b := range l.queue[keep:] {
		l.refresh = l.refresh || b.parked || len(b.parks) > 0 // it is due still, and no longer known to be
		e.forget(l, b)
	}
	l.rewind(keep)
	clear(l.queue[keep:])
	l.queue = l.queue[:keep]
}

// rewind makes the lane read again behind its first keep batches: it may be kept
// after all, and must not continue behind what was dropped.
func (l *lane) rewind(keep int) {
	l.readPos, l.idle = nil, false // nil: as settled
	l.ahead.Lost()
	for _, b := range l.queue[:keep] {
		if b.pos != nil {
			l.readPos = b.pos
		}
	}
}
