package consumer

import (
	"context"
	"time"

	"github.com/postrider/postrider/broker"
)

// processor decides what becomes of a delivery. aside instead of a verdict asks
// for another call, in a turn that is the last.
type processor func(ctx context.Context, d broker.Delivery, at turn) (v broker.Verdict, aside bool)

// turn says how a delivery runs.
type turn struct {
	alone bool // no other delivery of this consumer runs meanwhile
	last  bool // nothing better is to be had: do not ask to be set aside
}

// handle runs a delivery: beside others, and if it must not, alone. When the
// run is stopping the verdict gives the delivery back.
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

// enter waits for the door. Who waits for slots holds it, so that those who
// want them all are not overtaken for ever by those who want one.
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

// acquireAll waits until no handler runs and keeps others from beginning. After
// HandlerTimeout it is content with fewer slots than all: a handler that does
// not listen to its context must not stop the consumer. The caller gives the
// slots back, and then the door; ok is false when the run is stopping.
func (r *run) acquireAll(it *item) (held int, ok bool) {
	r.door <- struct{}{} // who holds it leaves when the run is stopping
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
			expired = nil // without a slot nothing runs
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
