package core

import (
	"time"

	"github.com/postrider/postrider/relay/internal/health"
)

// storeFails takes in a failed call that began at that time.
func (e *Engine) storeFails(kind health.Kind, began time.Duration, err error) {
	e.tellAll(e.health.Fails(e.now, began, kind, err))
}

// storeWorks takes in a call that began at that time and worked.
func (e *Engine) storeWorks(kind health.Kind, began time.Duration) {
	e.health.Works(e.now, began, kind)
}

// planHealth reports whether the store works, and the end of an outage.
func (e *Engine) planHealth() {
	if !e.health.Down {
		return
	}
	if e.health.Quiet() {
		for _, kind := range [...]health.Kind{health.Read, health.Parked} {
			if at, open := e.obsolete(kind); open && e.now >= at {
				e.health.Clear(e.now, kind)
			}
		}
	}
	e.tellAll(e.health.Answers(e.now), e.health.End(e.now))
}

// obsolete returns when the fault of a kind of read is out of date, because no such
// read has followed the pause. The lanes that wanted it may have moved away, or a person
// has paused them. It reports false without such a fault, and while a read of that kind
// is in flight.
func (e *Engine) obsolete(kind health.Kind) (at time.Duration, open bool) {
	hold, inFlight := &e.readHold, len(e.reads)
	if e.parked.op != 0 {
		inFlight--
	}
	if kind == health.Parked {
		hold, inFlight = &e.parked.hold, min(int(e.parked.op), 1)
	}
	return hold.until + health.PartCalm, e.health.Faulty(kind) && inFlight == 0
}

// healthTimes are the moments at which an outage of the store may end.
func (e *Engine) healthTimes(at func(time.Duration)) {
	if !e.health.Down {
		return
	}
	at(e.health.AnswersAt())
	at(e.health.EndsAt())
	for _, kind := range [...]health.Kind{health.Read, health.Parked} {
		if t, open := e.obsolete(kind); open {
			at(t)
		}
	}
}
