package core

import (
	"math"
	"slices"
	"time"

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
	for _, l := range e.held {
		e.shed(l)
	}
	if !e.cutOff && (e.now >= e.drainUntil || e.now >= e.storeGone()) {
		e.cutOff = true
		for _, l := range e.held {
			if l.call != nil {
				e.do(Cancel{ID: l.call.id})
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
		n += l.doneMsgs
	}
	if e.settle != nil {
		n += e.settle.messages
	}
	if n > 0 {
		e.tell(DrainCutOff{Messages: n})
	}
}

func (e *Engine) quiet() bool {
	if e.settle != nil && e.lease.valid {
		return false
	}
	for _, l := range e.held {
		if len(l.queue) > 0 || l.call != nil {
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
		e.storeFails(callLease, err)
	}
	e.stop(nil)
}

// shed drops the batches of a lane that were not begun, and the one that was
// when it is held back: the next owner sends it again. A lane that is only handed
// over keeps one of which something was acknowledged, else that would be a
// duplicate without a fault.
func (e *Engine) shed(l *lane) {
	keep := l.done
	if l.call != nil {
		keep++
	} else if l.done < len(l.queue) {
		b := l.queue[l.done]
		held := e.now < l.hold.until || e.sinkHeld()
		switch {
		case e.paused && !e.draining && b.sent: // read again it might come in another company, above the window
			keep++
		case b.started() && !e.cutOff && (!held || !e.draining && b.delivered > 0):
			keep++
		}
	}
	if keep == len(l.queue) {
		return
	}
	for _, b := range l.queue[keep:] {
		e.forget(l, b)
	}
	l.rewind(keep)
	clear(l.queue[keep:])
	l.queue = l.queue[:keep]
}

// rewind makes the lane read again behind its first keep batches: it may be kept
// after all, and must not go on behind what was dropped.
func (l *lane) rewind(keep int) {
	l.readPos, l.idle = nil, false // nil: as settled
	for _, b := range l.queue[:keep] {
		if b.pos != nil {
			l.readPos = b.pos
		}
	}
}
