package core

import (
	"time"

	"github.com/postrider/postrider/relay/internal/backoff"
	"github.com/postrider/postrider/relay/internal/port"
)

// planTimer asks for the next moment at which something is due by time alone.
// What is due already waits for an answer, which brings the next step.
func (e *Engine) planTimer() {
	next := time.Duration(0)
	at := func(t time.Duration) {
		if t > e.now && (next == 0 || t < next) {
			next = t
		}
	}
	if e.lease.op == 0 {
		at(e.lease.nextAt)
	}
	if e.lease.valid {
		at(e.lease.deadline)
	}
	if e.draining {
		at(min(e.drainUntil, e.storeGone()))
		at(e.drainUntil)
	}
	e.healthTimes(at)
	e.places.Times(at)
	at(e.readHold.until)
	at(e.rate.At)
	at(e.parked.hold.until)
	if op := e.settle; op != nil && op.id == 0 {
		at(op.pause.until)
	}
	if s := e.scopes[""]; s.isOut() {
		at(s.pause.until)
	}
	e.laneTimes(at)
	e.aloneTimes(at)
	if next != 0 && next != e.timer {
		e.timer = next
		e.do(port.Timer{At: next})
	}
}

func (e *Engine) laneTimes(at func(time.Duration)) {
	for _, l := range e.held {
		at(l.hold.until)
		at(l.resumes)
		if l.hasDue {
			at(l.due)
		}
		if l.records > 0 {
			at(l.viewedAt + viewAge)
		}
		if l.emptyAt > 0 {
			at(l.emptyAt + lazySettle*e.cfg.SettleAtMax)
		}
	}
	if due, _ := e.settleAt(); due > 0 && e.settle == nil {
		at(due)
	}
}

// pause is a growing break between tries of one thing.
type pause struct {
	failures int
	until    time.Duration
}

// pauseFor lengthens p by one more failure, with full jitter.
func (e *Engine) pauseFor(p *pause, base, limit time.Duration) {
	p.failures++
	p.until = e.now + e.jittered(base, limit, p.failures)
}

func (e *Engine) jittered(base, limit time.Duration, failures int) time.Duration {
	return backoff.Jittered(e.rng, base, limit, failures)
}

func (e *Engine) retryDelay(attempts int) time.Duration {
	return backoff.Retry(e.rng, e.cfg.Retry, attempts)
}
