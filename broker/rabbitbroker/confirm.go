package rabbitbroker

import (
	"context"
	"time"

	"github.com/postrider/postrider/broker"
)

// sweepAfter is how long the longest waiting message holds up the look at others.
const sweepAfter = 100 * time.Millisecond

// await takes the answer of the message that has waited longest, or, if that takes
// long, of all that have one.
func (d *delivery) await(ctx context.Context) {
	if len(d.wire) == 0 {
		return
	}
	w := &d.wire[0]
	select {
	case <-w.confirm.Done():
		d.wire = d.wire[1:]
		d.take(w)
		return
	default:
	}
	limit := w.since.Add(d.s.opts.Timeout)
	timer := time.NewTimer(min(time.Until(limit), sweepAfter))
	defer timer.Stop()
	select {
	case <-w.confirm.Done():
	case <-ctx.Done():
	case <-timer.C:
		d.sweep()
		if len(d.wire) > 0 && !time.Now().Before(d.wire[0].since.Add(d.s.opts.Timeout)) {
			d.late(&d.wire[0])
			d.wire = d.wire[1:]
		}
	}
}

// sweep takes all answers that are there.
func (d *delivery) sweep() {
	open := d.wire[:0]
	for i := range d.wire {
		w := d.wire[i]
		select {
		case <-w.confirm.Done():
			d.take(&w)
		default:
			open = append(open, w)
		}
	}
	clear(d.wire[len(open):])
	d.wire = open
}

// take takes the answer of a message that has one.
func (d *delivery) take(w *sent) {
	err := w.session.answer(w)
	d.s.window.give(err == nil)
	if err != nil {
		if c := broker.Classify(err).Code; c == codeNack {
			d.s.window.shrink()
		}
		d.fail(w.i, err)
		return
	}
	d.s.refusals.taken(w.key)
	if n := d.next[w.i]; n > 0 {
		d.ready = append(d.ready, int(n))
	}
}

// late gives up the wait for a confirm. A broker that has blocked its publishers
// reads on when it can, and one that confirms others works; any other one is not
// worth the wait, and neither is what else stands on the connection.
func (d *delivery) late(w *sent) {
	w.session.leave(w)
	if w.session.reason.Load() == nil && !w.session.confirmsOthers(w.since) {
		w.session.end(nil)
	}
	d.s.window.give(false)
	d.fail(w.i, w.session.unanswered(w.since, w.destination, errNoConfirm))
}

// abandon answers everything that is open: what is on the wire is unknown, the
// rest is not sent.
func (d *delivery) abandon(ctx context.Context) {
	d.sweep()
	for i := range d.wire {
		w := &d.wire[i]
		w.session.leave(w)
		d.fail(w.i, w.session.unanswered(w.since, w.destination, ctx.Err()))
		d.s.window.give(false)
	}
	for _, i := range d.ready {
		d.fail(i, broker.NotTried(broker.Unknown(ctx.Err(), "", "")))
	}
	d.wire, d.ready = nil, nil
}
