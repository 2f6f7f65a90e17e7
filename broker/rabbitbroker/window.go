package rabbitbroker

import (
	"sync"
	"time"
)

// window bounds the unconfirmed messages of a sink and finds the bound by itself:
// too few leave the broker idle while confirms travel, too many only wait in its
// memory, and in ours. While senders wait for room it compares the rate of
// confirms at the bound with the rate at a larger or a smaller one, in turns, and
// moves to the larger one if that is faster and to the smaller one if that is as
// fast. It is a hill climb over the rate itself, because RabbitMQ's latency is no
// indicator: a quorum queue writes many messages with one sync to the disk,
// so the latency grows with the bound while the rate still grows too.
type window struct {
	now func() time.Time

	mu     sync.Mutex
	limit  int
	used   int
	room   chan struct{} // closed when there is room again; nil: no sender waits
	full   bool          // a sender had to wait in this step
	fixed  bool
	trial  trial
	down   bool    // the next trial is a smaller bound
	before float64 // the rate at kept, which a trial is compared with
	kept   int     // the bound before the trial
	rest   int     // steps until the next trial
	pauses int     // steps between trials, which grow while trials find nothing
	begun  time.Time
	count  int
}

// trial is the kind of rate that a step measures.
type trial uint8

const (
	atBound trial = iota // the rate at the bound itself
	aside                // the rate at another one
)

const (
	windowLeast = 64
	windowMost  = 8192
	windowFirst = 512
	// A step lasts for stepTurns confirms per message of the bound, and at least stepLeast.
	stepTurns = 4
	stepLeast = 50 * time.Millisecond
	// A futile trial costs some rate: there are up to pausesMost steps between two trials.
	pausesMost = 15
)

// newWindow returns a window of n messages, or one that finds its size if n is 0.
func newWindow(n int, now func() time.Time) *window {
	w := &window{now: now, limit: windowFirst}
	if n > 0 {
		w.limit, w.fixed = n, true
	}
	w.begun = now()
	return w
}

// take takes room for a message, if there is any. Otherwise it returns a channel
// that is closed when there may be room.
func (w *window) take() (bool, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.used < w.limit {
		w.used++
		return true, nil
	}
	w.full = true
	if w.room == nil {
		w.room = make(chan struct{})
	}
	return false, w.room
}

// give gives room back. confirmed means that the broker accepted the message.
func (w *window) give(confirmed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.used--
	if w.room != nil && w.used < w.limit {
		close(w.room)
		w.room = nil
	}
	if !confirmed || w.fixed {
		return
	}
	w.count++
	if w.count < stepTurns*w.limit {
		return
	}
	now := w.now()
	took := now.Sub(w.begun)
	if took < stepLeast {
		return
	}
	if w.full {
		w.step(float64(w.count) / took.Seconds())
	} else {
		w.trial = atBound // the senders were slower than the bound allows
	}
	w.begun, w.count, w.full = now, 0, false
}

// step handles a measured rate. The caller holds mu.
func (w *window) step(rate float64) {
	const faster, asFast = 1.04, 0.995
	switch {
	case w.trial == atBound && w.rest > 0:
		w.rest--
		return
	case w.trial == atBound:
		w.before, w.kept, w.trial = rate, w.limit, aside
		if w.down {
			w.limit = max(w.limit*3/4, windowLeast)
		} else {
			w.limit = min(w.limit*3/2, windowMost)
		}
		return
	case !w.down && rate >= w.before*faster:
		w.before, w.kept = rate, w.limit
		w.pauses = 0
		w.limit = min(w.limit*3/2, windowMost) // continue in the same direction
		if w.limit > w.kept {
			return
		}
	case w.down && rate >= w.before*asFast:
		w.pauses = 0
	default:
		w.limit, w.pauses = w.kept, min(2*w.pauses+1, pausesMost)
	}
	w.trial, w.down, w.rest = atBound, !w.down, w.pauses
}

// shrink halves the bound after a refusal or an alarm of the broker.
func (w *window) shrink() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fixed {
		return
	}
	w.limit = max(w.limit/2, windowLeast)
	w.trial, w.down, w.rest, w.pauses = atBound, false, 0, 0
	w.begun, w.count, w.full = w.now(), 0, false
}
