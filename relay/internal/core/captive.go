package core

import (
	"time"

	"github.com/postrider/postrider/relay/internal/captive"
	"github.com/postrider/postrider/relay/internal/mark"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// setView takes the whole view of a lane whose pipeline is empty.
func (e *Engine) setView(l *lane, v store.ParkedView) {
	l.known, l.viewedAt = len(v.Heads) == len(v.Captured), e.now
	l.captured = captive.Of(v, l.known, l.captured, e.now)
	l.gaps, l.gapCount = mark.NewGaps(v.Gaps), len(v.Gaps)
	if v.Records == 0 {
		clear(l.suspects)
	}
	l.records, l.more = v.Records, v.Records >= e.cfg.MaxParked()
	l.setSingle(v, e.now)
	l.hasDue, l.due = l.hasSingle, l.single // of a store that does not tell more: of everything
	e.rearm(l)
}

// setSingle notes when the next record outside queues is due, or any record.
func (l *lane) setSingle(v store.ParkedView, now time.Duration) {
	l.hasSingle, l.single = v.HasDue, now+min(max(v.NextDue, -never), never)
}

// rearm finds when the lane's parked records are to be looked at next.
func (e *Engine) rearm(l *lane) {
	if !l.known {
		return
	}
	l.hasDue, l.due = l.hasSingle, l.single
	for _, c := range l.captured {
		if c.Timed {
			l.due = captive.Soonest(l.hasDue, l.due, max(c.Due, e.opens(c.Place)))
			l.hasDue = true
		}
	}
	l.due = max(l.due, l.look)
}

// opens is when a destination that is down may be tried again, 0 if it is not down.
func (e *Engine) opens(place string) time.Duration {
	if place == "" {
		return 0
	}
	s := e.scopes[place]
	switch {
	case s == nil || !s.open:
		return 0
	case s.probe != nil:
		return e.now + e.cfg.OutageBase
	case s.free:
		return s.pause.until + 2*e.cfg.OutageBase
	}
	return s.pause.until
}

// planFreed looks again once a destination works.
func (e *Engine) planFreed() {
	if !e.parked.freed {
		return
	}
	e.parked.freed = false
	for _, l := range e.held {
		e.rearm(l)
	}
}

// shift moves due times with the database's clock. A clock that was set back delays no
// captured key: for the store, a retry whose last attempt lies in the future is due.
func (l *lane) shift(by time.Duration) {
	l.due, l.single = l.due+by, l.single+by
	if by <= time.Second {
		l.captured.Shift(by)
	}
}

// queueBehind notes that a record was parked behind a captured key. One that
// committed late may have a lower number than the head: then it is the head, and
// is due.
func (e *Engine) queueBehind(l *lane, key string, seq int64) {
	if !l.captured.Behind(key, seq, l.known, e.now) {
		return
	}
	look := e.now
	if !l.known {
		look += e.cfg.TTL
	}
	l.due = captive.Soonest(l.hasDue, l.due, look)
	l.hasDue = true
}

// learn takes in what a settlement that was answered did to the parked records.
func (e *Engine) learn(l *lane, settled []*batch, s *store.Settlement) {
	if !l.known || len(s.Park)+len(s.Unpark) == 0 {
		return
	}
	l.records = max(l.records-len(s.Unpark), 0)
	l.refresh = l.refresh || l.more && l.records < e.cfg.MaxParked()/2
	for i := range s.Park { // the database counted from then
		if p := &s.Park[i]; p.State == store.Retry {
			l.captured.Settled(p.Message.Key, p.Seq, e.now+p.DueIn)
		}
	}
	for _, b := range settled {
		if b.parked {
			e.release(l, b)
		}
	}
	e.rearm(l)
}

// release releases the keys whose queues a settled batch has emptied. A record
// that was parked behind one of them since the read stands in its queue.
func (e *Engine) release(l *lane, b *batch) {
	for i := range b.msgs {
		key := b.msgs[i].Key
		if b.meta[i].State == store.Scheduled || b.failed.Has(key) {
			continue
		}
		if l.captured.Release(key, b.meta[i].Seq, b.meta[i].Last, l.paused, e.now) {
			l.hasSingle, l.single = true, e.now // a scheduled record may have waited for the key
		}
	}
}

// parkedReads are the reads of parked records: one at a time, beside those of the log.
type parkedReads struct {
	op    port.ID // in flight, 0: none
	hold  pause
	pace  captive.Pace
	first int  // lane index that is asked for first
	freed bool // a destination recovers

	anySize bool // the newest read that was allowed one record of any size was of these
	starved bool // one that was not found no room for its first lane: these have the next turn
}

// failed lets the lane that was asked first be asked again first.
func (p *parkedReads) failed(op *readOp, first int) {
	asked := 0
	for i := range op.reads {
		asked += op.reads[i].MaxRecords
	}
	if !p.pace.Alone() {
		p.first = first
	}
	p.pace.Failed(asked)
}

// planParked asks for what is due in lanes whose pipeline is empty, lane by lane in
// turn, as much as one read may bring.
func (e *Engine) planParked() {
	p := &e.parked
	left := e.bytesLeft()
	if !e.mayAsk() || e.paused || e.draining || p.op != 0 || e.now < p.hold.until || left <= 0 {
		return
	}
	var op *readOp
	rows, views, n := p.pace.Rows(), p.pace.Views(), len(e.held)
	for i := 0; i < n && rows > 0 && !(op != nil && p.pace.Alone()); i++ {
		l := e.held[(p.first+i)%n]
		if !e.wantsParked(l) || !e.mayRead(l) {
			continue
		}
		r := store.LaneRead{Parked: true, MaxRecords: e.fitting(l, min(e.room(l), rows)), CountParked: e.cfg.MaxParked()}
		if r.MaxRecords == 0 {
			continue
		}
		if l.refresh || !l.known {
			if views == 0 {
				continue
			}
			views--
		} else if r.Keys = e.dueKeys(l, r.MaxRecords); len(r.Keys) == 0 && (!l.hasSingle || e.now < l.single) {
			e.rearm(l)
			continue
		}
		if op == nil {
			op = e.takeReadOp()
			op.parked = true
		}
		rows -= r.MaxRecords
		e.ask(op, l, r)
	}
	if op == nil {
		return
	}
	last, _ := e.find(op.lanes[len(op.lanes)-1].id)
	p.first = last + 1
	e.reserve(op, (left+1)/2, !e.tight || !p.anySize) // the log has its turn
	p.op = e.sendRead(op, p.pace.Timeout(e.cfg.StoreTimeout))
}

// dueKeys are the captured keys of the lane whose queues are to be read next, never
// nil: those that have waited longest, and of a destination that is to be tried
// again only the first one.
func (e *Engine) dueKeys(l *lane, n int) []string {
	out := func(place string) bool { return e.scopes[place].isOut() }
	return l.captured.Due(max(n/l.depth, 1), e.now, e.opens, out)
}

// acceptParked takes the answer of a parked read: what is due, and the whole view
// unless queues were named. The lane's pipeline was empty, so it is exact.
func (e *Engine) acceptParked(l *lane, b *batch, r store.LaneRead, sb *store.Batch) {
	if r.Keys == nil {
		e.setView(l, sb.Parked)
		e.obey(l, sb.Parked.Paused)
		l.refresh, l.acted = false, false
	} else {
		l.setSingle(sb.Parked, e.now)
		e.rearm(l)
		// One that is bounded may have been left out for the bytes of others.
		if (!sb.More || len(b.msgs) == 0 && r.Within == 0) && captive.Missed(b.msgs, r.Keys) {
			l.refresh = true
		}
		l.depth = captive.Depth(l.depth, len(b.msgs), len(r.Keys), r.MaxRecords, l.paused)
	}
	if len(b.msgs) == 0 {
		// What is due by the view and not by the read is looked for a little later.
		l.look = e.now + 10*time.Millisecond
		l.due = max(l.due, l.look)
		l.turns, l.waits = 0, 0
		return
	}
	e.single(l, b)
	l.turns++
	l.waits++
	l.idle = false // the log has its turn
	e.enqueue(l, b)
}
