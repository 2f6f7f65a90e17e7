package core

import (
	"slices"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/ahead"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// Messages ahead of the read of the table that settles them are acknowledged or forgotten. The
// table's batch brings all of them again, resolves the acknowledged ones, and handles the others
// as if nothing had been. After any doubt the next read goes to the table.

// mayAhead reports whether messages of the lane may go ahead: nothing is wrong.
func (e *Engine) mayAhead(l *lane) bool {
	return e.cfg.Store.Ahead && e.cfg.Claim == nil && !e.wary && len(e.scopes) == 0 && e.rows.Quiet(e.now) && !e.ending(l) && !l.stopped &&
		l.crashes == 0 && l.narrow == 0 && l.hold == pause{} && l.resumes == 0 && len(l.suspects) == 0 && !l.stuck()
}

// ending reports whether nothing new of the lane is to be begun.
func (e *Engine) ending(l *lane) bool { return e.draining || e.paused || l.releasing }

// owes reports whether something that was acknowledged ahead is not settled yet.
func (l *lane) owes() bool { return l.ahead.Owes() > 0 }

// goesOn reports whether a lane works on until the table has brought what it owes; in a pause it takes that alone.
func (e *Engine) goesOn(l *lane) bool { return l.owes() && !(e.atRest(l) && l.ahead.Barred()) }

// atRest reports whether a person has paused the pipe or the lane, or may have paused the lane or a key of it.
func (e *Engine) atRest(l *lane) bool { return e.paused || l.stopped || l.acted }

func (e *Engine) owing() bool { return e.cfg.Store.Ahead && slices.ContainsFunc(e.held, e.goesOn) }

// askAhead lets the store answer ahead, but for one read in each interval of settlements.
func (e *Engine) askAhead(l *lane, r *store.LaneRead) {
	if !e.cfg.Store.Ahead {
		return
	}
	waiting := 0
	for _, b := range l.queue {
		if b.ahead {
			waiting += len(b.msgs)
		}
	}
	l.ahead.Ask(r, e.mayAhead(l), ahead.Limits{
		Now: e.now, Interval: e.cfg.SettleAfter, Window: e.cfg.Window, Waiting: waiting, Rest: e.atRest(l), Ending: e.ending(l),
	})
}

// forgetAhead drops what was read ahead and is not on its way.
func (e *Engine) forgetAhead(l *lane) {
	if !e.cfg.Store.Ahead {
		return
	}
	l.ahead.Forget()
	l.queue = slices.DeleteFunc(l.queue, func(b *batch) bool {
		switch {
		case !b.ahead:
			return false
		case l.call != nil && l.call.b == b:
			b.stale = true
			return false
		}
		e.forget(l, b)
		return true
	})
}

// goesAhead reports whether the rest of a batch may still go ahead.
func (e *Engine) goesAhead(l *lane, b *batch) bool {
	if b.stale || !e.mayAhead(l) {
		return false
	}
	for i := b.next; i < len(b.msgs); i++ {
		if l.ahead.Has(b.meta[i].Seq) || b.meta[i].DueIn > 0 || l.holds(b, b.msgs[i].Key) {
			return false
		}
	}
	return true
}

// wentAhead takes in the answer to a call with messages ahead.
func (e *Engine) wentAhead(c *call, errs []error) {
	l, b := c.lane, c.b
	all := errs == nil || len(errs) == c.size() && !slices.ContainsFunc(errs, func(err error) bool { return err != nil })
	if all {
		e.allAcked(c)
	}
	fact := port.DeliveryDone{Lane: l.id, Took: e.now - c.sentAt}
	for j := range c.size() {
		m, acked := &b.msgs[c.at(j)], all || len(errs) == c.size() && errs[j] == nil
		l.ahead.Note(b.meta[c.at(j)].Seq, e.now, acked)
		if acked && !all {
			fact.Acked, fact.Bytes = fact.Acked+1, fact.Bytes+m.Size()
			e.noteAck(c, e.placeOf(m))
		} else if len(errs) == c.size() && errs[j] != nil {
			if k := int(broker.Classify(errs[j]).Class); k < len(fact.Classes) {
				fact.Classes[k]++
			}
		}
	}
	b.delivered = 0 // nothing is settled by it
	if !all {
		e.tell(fact)
		e.forgetAhead(l)
	}
}

// resolveAhead resolves what the batch has of messages that were acknowledged ahead of it.
func (e *Engine) resolveAhead(l *lane, b *batch) {
	if b.parked || !l.ahead.HasAny(b.meta) {
		return
	}
	b.goSlow()
	b.sent = true
	todo := len(b.todo)
	b.todo = slices.DeleteFunc(b.todo, func(i int) bool { return l.ahead.Brought(b.meta[i].Seq) })
	b.delivered += todo - len(b.todo)
}
