package rabbitbroker

import (
	"context"
	"slices"
	"time"

	"github.com/postrider/postrider/broker"
)

// sweepAfter is how long await waits for one message before it checks the others.
const sweepAfter = 100 * time.Millisecond

// await takes the answer of the message that has waited longest. After sweepAfter
// it takes all answers that have arrived, and from then on it does not wait for the slow
// routing keys before others: their queue may be stuck.
func (d *delivery) await(ctx context.Context) {
	if len(d.wire) == 0 {
		return
	}
	if len(d.slow) > 0 && time.Since(d.swept) >= sweepAfter {
		d.sweep()
		return
	}
	at := d.head()
	w := &d.wire[at]
	select {
	case <-w.confirm.Done():
		own := *w
		d.wire = slices.Delete(d.wire, at, at+1)
		d.take(&own)
		return
	default:
	}
	timer := time.NewTimer(min(time.Until(w.since.Add(d.s.opts.Timeout)), sweepAfter))
	defer timer.Stop()
	select {
	case <-w.confirm.Done():
	case <-ctx.Done():
	case <-timer.C:
		d.sweep()
	}
}

// head returns the index of the message to wait for: preferably the first one whose
// routing key is not slow.
func (d *delivery) head() int {
	for i := range d.wire {
		if !d.slow[d.wire[i].place.key] {
			return i
		}
	}
	return 0
}

// sweep takes all answers that have arrived, and stops waiting for late ones.
func (d *delivery) sweep() {
	d.swept = time.Now()
	if d.slow == nil {
		d.slow = make(map[string]bool)
	}
	open := d.wire[:0]
	for i := range d.wire {
		w := d.wire[i]
		select {
		case <-w.confirm.Done():
			d.take(&w)
		default:
			if d.swept.Sub(w.since) >= d.s.opts.Timeout {
				d.late(&w)
				continue
			}
			if d.swept.Sub(w.since) >= sweepAfter {
				d.slow[w.place.key] = true
			}
			open = append(open, w)
		}
	}
	clear(d.wire[len(open):])
	d.wire = open
}

// take handles the answer of a message.
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
	delete(d.slow, w.place.key)
	d.s.refusals.taken(w.place.key)
	if n := d.next[w.i]; n > 0 {
		d.ready = append(d.ready, int(n))
	}
}

// late stops waiting for a confirm. A broker that has blocked its publishers
// will read again, and a broker that confirms other messages works. Otherwise it closes
// the connection, which gives up all its messages.
func (d *delivery) late(w *sent) {
	w.session.leave(w)
	if w.session.reason.Load() == nil && !w.session.confirmsOthers(w.since) {
		w.session.end(nil)
	}
	d.s.window.give(false)
	d.fail(w.i, w.session.unanswered(w.since, w.destination, errNoConfirm))
}

// abandon resolves all open messages: those on the wire are unknown, the
// others were not sent.
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
