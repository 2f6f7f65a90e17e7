package core

import (
	"slices"
	"time"

	"github.com/postrider/postrider/relay/internal/backoff"
	"github.com/postrider/postrider/relay/internal/health"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// settleOp is a Settle until it is answered. Its settlements never change, so
// that repeating them is safe.
type settleOp struct {
	id          port.ID // 0: waits to be repeated
	lanes       []*lane
	settlements []store.Settlement
	messages    int
	sentAt      time.Duration
	pause       pause
	mark        *batch // of a suspect whose attempts alone are settled
}

func (op *settleOp) has(id store.Lane) bool {
	return slices.ContainsFunc(op.settlements, func(s store.Settlement) bool { return s.Lane == id })
}

func (e *Engine) planSettle() {
	if !e.lease.valid {
		return
	}
	if !e.draining {
		e.planRequests()
	}
	if op := e.settle; op != nil {
		if op.id == 0 && e.now >= op.pause.until {
			e.sendSettle(op)
		}
		return
	}
	if !e.settleDue() {
		return
	}
	op := &settleOp{}
	for _, l := range e.held {
		if l.done > 0 {
			op.lanes = append(op.lanes, l)
			op.settlements = append(op.settlements, e.settlement(l))
			op.messages += l.doneMsgs
			l.settling, l.doneMsgs, l.doneBytes, l.doneAt, l.emptyAt = l.done, 0, 0, 0, 0
		}
	}
	e.settle = op
	e.sendSettle(op)
}

func (e *Engine) sendSettle(op *settleOp) {
	op.id, op.sentAt = e.id(), e.now
	e.do(port.Settle{ID: op.id, Settlements: op.settlements, Timeout: e.cfg.StoreTimeout})
}

func (e *Engine) settleDue() bool {
	for _, l := range e.held {
		if l.done > 0 && (e.urgent(l) || l.doneAt == 0 && e.now >= l.emptyAt+lazySettle*e.cfg.SettleAtMax) {
			return true
		}
	}
	// Half of all at once: the read that follows finds room in nearly every lane, and
	// rows of all lanes lie on the same pages of the database.
	at, done := e.settleAt()
	return at > 0 && (e.now >= at || done >= max(e.cfg.MaxMessages/2, 1) || e.bytes >= e.cfg.MaxBytes) // nothing is read before
}

// settleAt returns when the messages that are resolved are settled at the latest, 0: there are
// none, and their number. It is later while few come: a settlement costs a row per lane.
func (e *Engine) settleAt() (at time.Duration, done int) {
	lanes := 0
	for _, l := range e.held {
		if l.doneAt > 0 {
			at, done, lanes = backoff.Earliest(at, l.doneAt), done+l.doneMsgs, lanes+1
		}
	}
	switch {
	case lanes == 0:
		return 0, 0
	case done >= 16*lanes:
		return at + e.cfg.SettleAfter, done
	}
	return at + e.cfg.SettleAtMax, done
}

// urgent reports whether something waits for the lane's settlement.
func (e *Engine) urgent(l *lane) bool {
	_, window := e.limits()
	return e.draining || e.paused || l.releasing || e.wantsParked(l) || l.queue[0].parked || l.queue[0].aside || l.narrow > 0 || len(l.queue[0].requests) > 0 ||
		l.doneMsgs >= window/2 || l.doneBytes >= e.cfg.WindowBytes/2
}

func (e *Engine) settlement(l *lane) store.Settlement {
	s := store.Settlement{BootID: e.cfg.BootID, Lane: l.id, Epoch: l.epoch}
	for _, b := range l.queue[:l.done] {
		if b.pos != nil {
			s.Position = b.pos
		}
		s.Delivered += b.delivered
		for _, p := range b.parks {
			if p.at > 0 {
				p.DueIn = max(p.at-e.now, 0)
			}
			s.Park = append(s.Park, p.Park)
		}
		s.Unpark = append(s.Unpark, b.unpark...)
		s.Requests = append(s.Requests, b.requests...)
	}
	return s
}

func (e *Engine) onSettled(ev port.Settled) {
	op := e.settle
	if op == nil || op.id != ev.ID {
		return
	}
	op.id = 0
	if ev.Err != nil {
		if e.refused(ev.Err, e.history) { // an operation of the history before is forgotten
			return
		}
		e.pauseFor(&op.pause, e.cfg.OutageBase, e.cfg.OutageMax/3)
		e.storeFails(health.Settle, op.sentAt, ev.Err)
		return
	}
	e.storeWorks(health.Settle, op.sentAt)
	e.settle = nil
	fact := port.SettleDone{Took: e.now - op.sentAt}
	for i, l := range op.lanes {
		s := &op.settlements[i]
		e.floor[l.id] = max(e.floor[l.id], s.Epoch+1)
		if slices.Contains(ev.Lost, l.id) {
			if l.held {
				e.removeLane(l, "taken")
			}
			continue
		}
		fact.Lanes++
		fact.Messages += s.Delivered
		fact.Parked += len(s.Park)
		fact.Unparked += len(s.Unpark)
		if l.held {
			e.settled(l, s)
		}
	}
	if op.mark != nil {
		op.mark.markSettled()
	}
	e.tell(fact)
}

// settled removes what the answered settlement covered.
func (e *Engine) settled(l *lane, s *store.Settlement) {
	l.epoch = s.Epoch + 1
	for _, b := range l.queue[:l.settling] {
		e.forget(l, b)
	}
	e.learn(l, l.queue[:l.settling], s)
	e.moved(l, l.queue[:l.settling], s)
	l.queue = slices.Delete(l.queue, 0, l.settling)
	l.done -= l.settling
	l.settling = 0
	if len(s.Requests) > 0 {
		clear(l.suspects) // a person may have skipped, discarded or freed any of them
	}
	l.executed.Note(s.Requests, e.now, 10*e.cfg.TTL)
}
