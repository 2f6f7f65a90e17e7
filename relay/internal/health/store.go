// Package health decides what is reported about a store and a sink: when an outage
// begins, changes its reason and ends.
package health

import (
	"errors"
	"time"

	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// Kind is a kind of store call; each kind is one bit.
type Kind uint8

// The kinds.
const (
	Lease Kind = 1 << iota
	Read
	Settle
	Parked
)

const (
	// reasonPatience is how long an outage of the store lasts before its other reasons
	// are reported. A failover goes through several: a connection that ends, one that
	// is refused, a server that starts, a standby.
	reasonPatience = time.Minute
	// silence is the time without a successful call that means an outage of the whole store.
	silence = time.Second
	// Calm is the time without a failure that ends an outage of unknown extent.
	Calm = time.Second
	// PartCalm is the time without a failure that ends an outage in which some calls worked.
	PartCalm = 5 * time.Second
	// RelapseWithin is how soon after an outage the next one counts as its relapse.
	RelapseWithin = 30 * time.Second
	// RelapsesMost is the number of relapses in a row that are reported as outages of their own.
	RelapsesMost = 3
	// CalmMost bounds the calm that ends an outage with many relapses.
	CalmMost = time.Minute
)

// Store is the reported health of the store. The first failure begins
// an outage. An outage of the whole store ends as soon as each kind of call has
// recovered. An outage of a part, such as a role at its connection limit, would begin and
// end many times a second: it ends once no call has failed for a while. Times are those
// of the engine. The zero value is a working store. It is not safe for concurrent use.
type Store struct {
	Down bool // in a reported outage

	faults     Kind          // kinds whose last call failed
	whole      bool          // no call worked for silence, until backAt
	part       bool          // a call failed long after another one had worked
	relapses   int           // outages in a row that began soon after the last one
	downAt     time.Duration // when the outage began
	backAt     time.Duration // when the first call begun since then succeeded; 0: none
	failedAt   time.Duration // when a call failed last
	workedAt   time.Duration // when a call succeeded last
	clearAt    time.Duration // when the last fault was cleared
	upAt       time.Duration // when the last outage ended; 0: none yet
	newHistory bool          // the history has changed since downAt
	said       Reasons
	failure    error // the last failure
	silent     bool  // the last fact of Answers was a failure
}

// Fails records a call that began at began and failed now. It returns the fact to
// report, or nil.
func (h *Store) Fails(now, began time.Duration, kind Kind, err error) (f port.Fact) {
	switch {
	case !h.Down && began < h.upAt: // the calls that ended the outage are newer
		return nil
	case !h.Down:
		h.begin(now)
		h.said.Fresh(err)
		f = port.HealthChanged{Part: "store", Down: true, Err: err}
	case (forPeople(err) || now-h.downAt >= reasonPatience) && h.said.Fresh(err):
		f = port.ReasonChanged{Part: "store", Err: err}
	}
	if h.backAt > 0 && began > h.backAt+silence { // not a stale connection after a failover
		h.whole, h.part = false, true
	}
	h.faults |= kind
	h.failedAt, h.failure = now, err
	return f
}

func (h *Store) begin(now time.Duration) {
	if h.upAt > 0 && now-h.upAt < RelapseWithin {
		h.relapses++
	} else {
		h.relapses = 0
	}
	h.Down, h.downAt, h.backAt, h.newHistory, h.said = true, now, 0, false, nil
	h.whole, h.part = false, false
}

// forPeople reports whether a person must act because waiting does not help.
func forPeople(err error) bool {
	return errors.Is(err, store.ErrUnusable) || errors.Is(err, store.ErrSchema)
}

// Works records a call that began at began and succeeded.
func (h *Store) Works(now, began time.Duration, kind Kind) {
	if h.Down && began >= h.downAt {
		if since := max(h.workedAt, h.downAt); now-since >= silence {
			h.whole, h.part, h.backAt = true, false, now
		} else if h.backAt == 0 {
			h.backAt = now
		}
	}
	h.workedAt = now
	h.Clear(now, kind)
}

// Clear forgets that the last call of a kind failed.
func (h *Store) Clear(now time.Duration, kind Kind) {
	if !h.Faulty(kind) {
		return
	}
	if h.faults &^= kind; h.faults == 0 {
		h.clearAt = now
	}
}

// Faulty reports whether the last call of a kind failed.
func (h *Store) Faulty(kind Kind) bool { return h.faults&kind != 0 }

// Quiet reports whether leases work and the last call succeeded.
func (h *Store) Quiet() bool { return !h.Faulty(Lease) && h.workedAt >= h.failedAt }

// Changes records that the store's history has changed.
func (h *Store) Changes() { h.newHistory = true }

// calm returns the time without a failure after which the end of the outage is reported.
func (h *Store) calm() time.Duration {
	switch {
	case h.relapses > RelapsesMost:
		return calmAfter(h.relapses)
	case h.part:
		return PartCalm
	}
	return h.pause()
}

// pause returns the time without a failure after which the store counts as working.
func (h *Store) pause() time.Duration {
	if h.whole {
		return 0
	}
	return Calm
}

// AnswersAt returns when the store counts as working if no call fails until then.
func (h *Store) AnswersAt() time.Duration { return h.failedAt + h.pause() }

// Answers returns a fact if the store's health for probes has changed, and nil
// otherwise. Such a change is not logged as an outage.
func (h *Store) Answers(now time.Duration) port.Fact {
	silent := h.Down && (h.faults != 0 || now < h.AnswersAt())
	if silent == h.silent {
		return nil
	}
	if h.silent = silent; silent {
		return port.StoreAnswers{Err: h.failure}
	}
	return port.StoreAnswers{Works: true}
}

// EndsAt returns when the outage ends if no call fails until then.
func (h *Store) EndsAt() time.Duration { return h.failedAt + h.calm() }

// End returns the end of the outage if it must be reported now, and nil otherwise.
func (h *Store) End(now time.Duration) port.Fact {
	if !h.Down || h.faults != 0 || now < h.EndsAt() {
		return nil
	}
	h.Down, h.upAt = false, now
	return port.HealthChanged{Part: "store", After: h.clearAt - h.downAt, NewHistory: h.newHistory}
}
