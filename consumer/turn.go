package consumer

import (
	"context"
	"time"

	"github.com/postrider/postrider/broker"
)

// processor handles a delivery. With aside it asks for another call, in a last
// turn, instead of returning a verdict.
type processor func(ctx context.Context, d broker.Delivery, at turn) (v broker.Verdict, aside bool)

// turn is how a delivery runs.
type turn struct {
	alone bool // no other delivery of this consumer runs meanwhile
	last  bool // the processor must not ask to be set aside
}

// handle runs a delivery: beside others, or alone if it must not run beside others. While
// the run is stopping the verdict gives the delivery back.
func (r *run) handle(it *item) broker.Verdict {
	back := broker.Verdict{Delivery: it.d}
	if !r.acquire() {
		return back
	}
	only := cap(r.slots) == 1
	v, aside := r.process(r.work, it.d, turn{alone: only, last: only})
	<-r.slots
	if !aside {
		return v
	}
	held, ok := r.acquireAll(it)
	defer func() {
		for range held {
			<-r.slots
		}
		<-r.door
	}()
	if !ok {
		return back
	}
	v, _ = r.process(r.work, it.d, turn{alone: held == cap(r.slots), last: true})
	return v
}

// acquire waits for the right to run a handler; false when the run is stopping.
func (r *run) acquire() bool {
	if !r.enter() {
		return false
	}
	defer func() { <-r.door }()
	select {
	case r.slots <- struct{}{}:
		return true
	case <-r.stopping:
		return false
	}
}

// enter waits for the door. A goroutine that waits for slots holds the door, so
// that a goroutine that needs all slots is not starved by those that need one.
func (r *run) enter() bool {
	select {
	case <-r.stopping:
		return false
	default:
	}
	select {
	case r.door <- struct{}{}:
		return true
	case <-r.stopping:
		return false
	}
}

// acquireAll waits until no handler runs and keeps others from starting. After
// HandlerTimeout it accepts fewer than all slots: a handler that
// ignores its context must not stop the consumer. The caller gives the
// slots back, and then the door; ok is false when the run is stopping.
func (r *run) acquireAll(it *item) (held int, ok bool) {
	r.door <- struct{}{} // its holder leaves when the run is stopping
	patience := time.NewTimer(r.opts.HandlerTimeout)
	defer patience.Stop()
	for held < cap(r.slots) {
		select {
		case <-r.stopping:
			return held, false
		default:
		}
		expired := patience.C
		if held == 0 {
			expired = nil // at least one slot is needed
		}
		select {
		case r.slots <- struct{}{}:
			held++
		case <-expired:
			r.opts.Logger.Warn("handler overdue",
				"consumer", r.opts.Name, "message", it.d.Message.ID, "running", cap(r.slots)-held)
			return held, true
		case <-r.stopping:
			return held, false
		}
	}
	return held, true
}
