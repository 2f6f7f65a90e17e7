package core

import (
	"errors"
	"strings"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/mark"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/relay/internal/sets"
	"github.com/postrider/postrider/store"
)

var errShutDown = errors.New("the relay shut down before the destination accepted the message")

// round is what one call told about the messages that were not acknowledged.
type round struct {
	c       *call
	stay    []int // unresolved, ascending
	behind  sets.Keys
	acked   int
	classes [5]int
	outage  *broker.Error // of the whole sink
	unknown *broker.Error
	out     *broker.Error // an outage or a throttle, of the sink or one destination
	resumes *scope        // a destination that some messages wait for
}

func (e *Engine) onDelivered(ev port.Delivered) {
	c := e.calls[ev.ID]
	if c == nil {
		return
	}
	delete(e.calls, ev.ID)
	if c.lane == nil { // cancelled: the answer no longer matters
		if e.abandoned[c.laneID]--; e.abandoned[c.laneID] <= 0 {
			delete(e.abandoned, c.laneID)
		}
		return
	}
	l, b := c.lane, c.b
	l.call = nil
	if c.cut { // why it failed says nothing of the sink or of a message
		ev.Errs = mark.NotTried(ev.Errs)
	}
	switch {
	case b.ahead:
		e.wentAhead(c, ev.Errs)
	case ev.Errs == nil:
		e.allAcked(c)
	default:
		e.forgetAhead(l)
		e.someFailed(c, ev.Errs)
	}
	e.endProbe(c)
	if b.resolved() {
		e.finish(l)
	}
}

// allAcked is the hot path: no look at single messages.
func (e *Engine) allAcked(c *call) {
	l, b := c.lane, c.b
	n := c.size()
	if n == 0 {
		return
	}
	first, last := e.placeOf(&b.msgs[c.at(0)]), e.placeOf(&b.msgs[c.at(n-1)])
	e.noteAck(c, first)
	if last != first {
		e.noteAck(c, last)
	}
	if len(e.scopes)+e.rows.Len()+len(e.watched) > 0 {
		for j, before := 0, ""; j < n; j++ {
			place := e.placeOf(&b.msgs[c.at(j)])
			if j > 0 && place == before {
				continue
			}
			before = place
			e.prove(c, place)
			e.recover(c, place)
		}
	}
	bytes := b.bytes
	if n < len(b.msgs) {
		bytes = bytes / len(b.msgs) * n
	}
	b.delivered += n
	b.proven()
	l.hold = pause{}
	if b.parked {
		for j := range n {
			e.unpark(l, b, c.at(j))
		}
	}
	if c.idx == nil && !b.slow {
		b.next = c.to
	} else {
		b.todo = sets.Without(b.todo, c.idx)
	}
	e.tell(port.DeliveryDone{Lane: l.id, Acked: n, Bytes: bytes, Took: e.now - c.sentAt})
}

func (e *Engine) someFailed(c *call, errs []error) {
	l, b := c.lane, c.b
	errs = mark.Answers(errs, c.size())
	if c.idx == nil {
		b.goSlow()
		c.idx = b.todo[:c.size():c.size()]
		c.idx = append([]int(nil), c.idx...)
	}
	r := &round{c: c, behind: sets.Keys{}}
	bytes := e.takeAcks(r, errs)
	before := len(c.idx)
	for j, err := range errs {
		if err != nil {
			e.takeError(r, c.idx[j], err)
		}
	}
	b.todo = sets.Merge(r.stay, sets.Without(b.todo, c.idx))
	b.sent = !c.first || c.cut || b.suspect || len(r.stay) < before || !mark.Refused(errs)
	e.tell(port.DeliveryDone{Lane: l.id, Acked: r.acked, Bytes: bytes, Took: e.now - c.sentAt, Classes: r.classes})
	e.holdAfter(r, len(r.stay) < before)
}

// takeAcks goes first: what an error means depends on what else went well.
func (e *Engine) takeAcks(r *round, errs []error) (bytes int) {
	b := r.c.b
	for j, err := range errs {
		if err != nil {
			continue
		}
		m := &b.msgs[r.c.idx[j]]
		r.acked++
		bytes += m.Size()
		place := e.placeOf(m)
		e.noteAck(r.c, place)
		e.prove(r.c, place)
		e.recover(r.c, place)
		if b.parked {
			e.unpark(r.c.lane, b, r.c.idx[j])
		}
	}
	b.delivered += r.acked
	if r.acked > 0 {
		b.proven()
	}
	return bytes
}

func (e *Engine) takeError(r *round, i int, raw error) {
	l, b := r.c.lane, r.c.b
	m := &b.msgs[i]
	err := broker.Classify(raw)
	switch {
	case r.behind.Has(m.Key): // its head's fate is open, so its own is too
		r.stay = append(r.stay, i)
		return
	case l.holds(b, m.Key):
		e.wait(l, b, i)
		return
	case b.suspect && (errors.Is(raw, broker.ErrNotTried) || err.Class != broker.ClassRejected && err.Class != broker.ClassFailed):
		if int(err.Class) < len(r.classes) {
			r.classes[err.Class]++
		}
		e.survived(r, i, err)
		return
	case errors.Is(raw, broker.ErrNotTried):
		r.keep(i, m.Key)
		return
	}
	if int(err.Class) < len(r.classes) {
		r.classes[err.Class]++
	}
	switch err.Class {
	case broker.ClassOutage, broker.ClassThrottled:
		e.takeOutage(r, i, err)
	case broker.ClassRejected:
		if s, held := e.rejected(e.placeOf(m), err); held {
			e.trip(s, r.c, err)
			e.waitFor(r, i, s, err)
			return
		}
		e.dead(l, b, i, err)
	case broker.ClassUnknown:
		if e.stillUnknown(r.c, i, err) {
			return
		}
		r.unknown = err
		r.keep(i, m.Key)
	default:
		e.failed(l, b, i, err)
	}
}

func (r *round) keep(i int, key string) {
	r.stay = append(r.stay, i)
	r.behind.Add(key)
}

func (e *Engine) takeOutage(r *round, i int, err *broker.Error) {
	if e.stillOut(r, i, err) {
		return
	}
	m := &r.c.b.msgs[i]
	r.out = err
	if err.Destination == "" {
		r.outage = err
		r.keep(i, m.Key)
		return
	}
	if place := e.placeOf(m); err.Destination != place {
		e.dests.Lead(place, err.Destination)
	}
	s := e.scope(err.Destination)
	e.trip(s, r.c, err)
	known := r.c.lane.suspects[r.c.b.meta[i].Seq]
	e.waitFor(r, i, s, err)
	if r.c.b.parked && r.c.ofOneKey() {
		known.Place, known.At, known.Out, known.Counted = strings.Clone(e.placeOf(m)), r.c.sentAt, true, false
		e.suspectAgain(r.c, i, known)
		e.watched.Watch(err.Destination)
	}
}

// waitFor parks a message of a destination that is down while others work, and
// keeps it otherwise.
func (e *Engine) waitFor(r *round, i int, s *scope, err *broker.Error) {
	l, b := r.c.lane, r.c.b
	if e.divert(l, b, i, s, err) {
		return
	}
	// A few messages may be all that the brake holds for, and what would release
	// it may stand behind them.
	if s.braked && s.pause.failures >= unknownRounds && len(b.todo) <= leftovers {
		e.divertNow(l, b, i, s, err)
		return
	}
	r.resumes = s
	r.keep(i, b.msgs[i].Key)
}

// holdAfter decides how long the lane or the sink pauses after a call.
func (e *Engine) holdAfter(r *round, progress bool) {
	c, l := r.c, r.c.lane
	others := e.anyAck && e.lastAck >= c.sentAt
	if r.out != nil {
		defer e.outageRound(r)
	}
	switch {
	case r.outage != nil && !others:
		e.trip(e.scope(""), c, r.outage)
		return
	case r.outage != nil:
		e.pauseFor(&l.hold, e.cfg.OutageBase, e.cfg.OutageMax)
		if r.outage.RetryAfter > 0 {
			l.hold.until = max(l.hold.until, e.now+min(r.outage.RetryAfter, e.cfg.OutageMax))
		}
	case r.unknown != nil:
		if !others && !c.lone {
			e.sinkFails(r.unknown)
		}
		e.unknownRound(r)
		return
	}
	if s := e.scopes[""]; s.isOut() && s.probe == c && (progress || others || r.out != nil && r.outage == nil) {
		delete(e.scopes, "") // it answered, if not kindly
		e.sinkWorks(false)
	}
	switch {
	case r.outage != nil || len(r.stay) == 0:
	case r.resumes != nil:
		l.resumes = r.resumes.pause.until
	case !progress:
		e.pauseFor(&l.hold, e.cfg.OutageBase, e.cfg.OutageMax)
	}
}

// proven notes that a message of the batch was acknowledged.
func (b *batch) proven() {
	b.outages = 0
	if b.alone != nil {
		b.alone.Proved = true
	}
}

// stateOf is the state that a record of the batch had before.
func (b *batch) stateOf(i int) store.State {
	if b.parked {
		return b.meta[i].State
	}
	return store.Pending
}
