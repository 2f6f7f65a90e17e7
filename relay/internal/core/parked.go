package core

import (
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/captive"
	"github.com/postrider/postrider/relay/internal/mark"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/relay/internal/sets"
	"github.com/postrider/postrider/store"
)

// wantsParked reports whether the lane's pipeline must run empty for its parked
// records. After some turns in a row a normal batch goes first.
func (e *Engine) wantsParked(l *lane) bool {
	switch {
	case !l.presses(e.now), e.ending(l) && e.goesOn(l):
		return false
	case len(l.requests) > 0:
		return true
	}
	return l.turns < parkedTurns || l.paused && e.overCap(l) && !e.blind(l)
}

// presses reports whether the lane's parked records, or requests, call for its turn.
func (l *lane) presses(now time.Duration) bool {
	return l.refresh || len(l.requests) > 0 || l.hasDue && now >= l.due
}

// planViews asks for the whole view of lanes whose view is old, at a slow pace. If a
// store announced too little, the owner would know no time of a parked record and the
// message would wait for ever.
func (e *Engine) planViews() {
	for _, l := range e.held {
		if l.records > 0 && e.now >= l.viewedAt+viewAge && !l.stuck() {
			l.refresh = true
		}
		if e.now < l.resumes && e.mayMakeWay(l) && e.wantsParked(l) {
			if e.rearm(l); e.wantsParked(l) { // what is due goes first
				e.makeWay(l)
			}
		}
	}
}

// mayMakeWay reports whether the lane's first batch waits and the broker has nothing of it.
func (e *Engine) mayMakeWay(l *lane) bool {
	return l.call == nil && l.done < len(l.queue) && !l.queue[l.done].sent && e.holdsBack(l)
}

// makeWay drops a first batch that may make way, to be read again. The lane keeps its count of outages
// and its round of single sends, or the batch would never be sent singly.
func (e *Engine) makeWay(l *lane) {
	for _, b := range l.queue[l.done:] {
		if !b.parked {
			l.outages, l.alone = b.outages, b.alone
			break
		}
	}
	e.shed(l)
}

// stuck reports whether the lane's first batch has met silence or an outage: only what
// comes behind it may end that, and a view would wait for it without reading.
func (l *lane) stuck() bool {
	if l.done >= len(l.queue) {
		return false
	}
	b := l.queue[l.done]
	return b.alone != nil || b.rounds > 0 || b.outages > 0
}

// blind reports whether all that a lane at its cap may send are messages of unknown
// fate, and nothing was acknowledged since where they go, or it is out since then: only
// what comes behind them can show whether it works.
func (e *Engine) blind(l *lane) bool {
	for _, s := range l.suspects { // order does not matter
		if !s.Counted && e.works(s.Place, s.At) && !e.scopes[""].isOut() && !e.scopes[e.destination(s.Place)].isOut() {
			return false
		}
	}
	return l.suspects.Await() && l.records < e.cfg.MaxParked()
}

// overCap reports whether the lane's captured keys are at the cap.
func (e *Engine) overCap(l *lane) bool {
	l.paused = len(l.captured) >= e.cfg.ParkedKeys
	e.tellPause(l)
	return l.paused
}

// tellPause tells why the lane is paused, if that has changed.
func (e *Engine) tellPause(l *lane) {
	before, reason := l.reason, port.PauseReason(l.stopped, l.paused, l.full)
	if l.reason = reason; before == reason {
		return
	}
	if before != "" {
		e.tell(port.LanePaused{Lane: l.id, Keys: len(l.captured), Reason: before})
	}
	if reason != "" {
		e.tell(port.LanePaused{Lane: l.id, Keys: len(l.captured), Reason: reason, On: true})
	}
}

// obey stops reading a lane that a person has paused, or continues. Its requests are
// executed in both cases: one of them is the end of the pause.
func (e *Engine) obey(l *lane, paused bool) {
	if l.stopped == paused {
		return
	}
	l.stopped, l.paused = paused, false
	e.tellPause(l)
}

// dueFirst reports whether the lane's requests wait for what is due of it. The pages
// of an order over many records would set more aside than is sent meanwhile, and
// every look at the lane cost more. After some turns, or while nothing can be read or
// sent, it is the requests' turn: one of them may be what ends the trouble.
func (e *Engine) dueFirst(l *lane) bool {
	return l.hasDue && e.now >= l.due && l.waits < actTurns && e.abandoned[l.id] == 0 && !e.paused && !e.sinkHeld() && e.parked.hold.failures < unknownRounds
}

// planRequests turns acts of people into a settlement of their own once the
// lane's pipeline is empty.
func (e *Engine) planRequests() {
	for _, l := range e.held {
		switch {
		case len(l.requests) == 0:
		case e.mayMakeWay(l):
			e.makeWay(l)
		case e.now < l.resumes && l.done < len(l.queue) && l.queue[l.done].rounds == 0 && !l.queue[l.done].parked:
			e.parkRest(l) // a part of it is done, and the rest waits for a destination
		}
		if len(l.requests) == 0 || len(l.queue) > 0 || l.reading || l.releasing || e.draining || e.dueFirst(l) {
			continue
		}
		b := &batch{prepared: true, requests: l.requests}
		l.requests, l.turns, l.waits = nil, 0, 0 // the view comes first: a skipped record that is retried captures its key
		e.enqueue(l, b)
		e.finish(l)
	}
}

// park sets message i of the batch aside.
func (e *Engine) park(l *lane, b *batch, i int, p park) {
	p.Seq, p.Message = b.meta[i].Seq, b.msgs[i]
	if p.Attempts == 0 {
		p.Attempts = b.meta[i].Attempts
	}
	if b.suspect && !b.sent && p.State != store.Dead { // it was not tried, and is one still
		p.Code, p.Attempts = mark.CrashCode(b.meta[i].Attempts), b.ends
	}
	b.parks = append(b.parks, p)
	// A dead letter that will be skipped holds its key too, until it is recorded:
	// else a crash could bring it back behind what was sent after it.
	if key := p.Message.Key; key != "" && (p.Captures || p.State == store.Dead) {
		l.captured.Capture(captive.Park{Key: key, Seq: p.Seq, At: p.at, Retry: p.State == store.Retry}, b.parked)
		if b.parked {
			if b.failed == nil {
				b.failed = sets.Keys{}
			}
			b.failed[key] = struct{}{}
		}
		l.refresh = l.refresh || !p.Captures
	}
	if p.State == store.Retry || p.State == store.Scheduled {
		if p.Message.Key == "" || !p.Captures {
			l.hasSingle, l.single = true, captive.Soonest(l.hasSingle, l.single, p.at)
		}
		l.hasDue, l.due = true, captive.Soonest(l.hasDue, l.due, p.at)
	}
	if !b.parked {
		l.records++
	}
	delete(l.suspects, p.Seq)
	e.tell(port.RecordParked{
		Lane: l.id, Seq: p.Seq, ID: p.Message.ID, Topic: p.Message.Topic, State: p.State,
		Attempts: p.Attempts, Class: p.Class, Code: p.Code, Error: p.Error,
	})
}

// unpark notes that a parked message was delivered.
func (e *Engine) unpark(l *lane, b *batch, i int) {
	seq := b.meta[i].Seq
	e.cleared(l, b, i)
	b.unpark = append(b.unpark, seq)
	delete(l.suspects, seq)
	delete(l.survivors, seq)
}

// wait parks a message behind its captured key. One that committed late may have
// a lower number than who captures the key: then it comes first, and is due now.
func (e *Engine) wait(l *lane, b *batch, i int) {
	if st := b.stateOf(i); st == store.Waiting || st == store.Retry {
		return // it stands there already
	}
	e.queueBehind(l, b.msgs[i].Key, b.meta[i].Seq)
	e.park(l, b, i, park{Park: store.Park{State: store.Waiting}})
}

// failed counts an attempt and parks the message until its next one, or for good.
func (e *Engine) failed(l *lane, b *batch, i int, err *broker.Error) {
	attempts := b.meta[i].Attempts + 1
	if attempts >= e.cfg.Retry.MaxAttempts {
		e.dead(l, b, i, err)
		return
	}
	p := parkFor(err)
	p.State, p.Captures, p.Attempts = store.Retry, b.msgs[i].Key != "", attempts
	p.at = e.now + e.retryDelay(attempts)
	e.park(l, b, i, p)
}

// dead parks the message for a person. Under Skip its key continues as soon as that
// is recorded, and its next message says so.
func (e *Engine) dead(l *lane, b *batch, i int, err *broker.Error) {
	p := parkFor(err)
	p.State, p.Attempts = store.Dead, b.meta[i].Attempts+1
	m := &b.msgs[i]
	p.Captures = m.Key != "" && (e.cfg.Policy(m.Topic) == port.Block || !e.mayLeaveGap(l, m))
	e.park(l, b, i, p)
}

// mayLeaveGap reports whether a key of the lane may continue behind one more skipped
// version. Gaps are kept in memory and read with every lease, so their number
// has the cap of captured keys.
func (e *Engine) mayLeaveGap(l *lane, m *postrider.Message) bool {
	return m.Version == 0 || l.gaps.Joins(m) || l.gapCount < e.cfg.ParkedKeys
}

// divert parks a message of a destination that is down, without an attempt, so
// that the others of the lane flow. It reports false when the message must stay
// in its batch: nothing else works, or the lane has parked enough.
func (e *Engine) divert(l *lane, b *batch, i int, s *scope, err *broker.Error) bool {
	if !b.parked && !e.mayDivert(l, b.msgs[i].Key, s) {
		return false
	}
	e.divertNow(l, b, i, s, err)
	return true
}

// mayDivert reports whether a message of the log may be parked for its destination.
func (e *Engine) mayDivert(l *lane, key string, s *scope) bool {
	if !e.othersWork(s.name) && !e.fills(l, s) {
		return false
	}
	if l.records >= e.cfg.MaxParked() {
		l.full = true
		e.tellPause(l)
		return false
	}
	return len(l.captured) < e.cfg.ParkedKeys || l.captured.Has(key)
}

// fills reports whether the lane can read no further, or what is due cannot be read, or the lane not
// handed over, because of messages of a destination that has been held for long. A window of them
// makes way although nothing shows that others work: only what stands behind can.
func (e *Engine) fills(l *lane, s *scope) bool {
	return (e.room(l) == 0 || l.releasing || e.wantsParked(l)) && e.now >= s.since+blindAfter && l.records < e.cfg.Window
}

func (e *Engine) divertNow(l *lane, b *batch, i int, s *scope, err *broker.Error) {
	untried := err == nil
	if untried {
		err = mark.Held(s.braked, s.silent, s.code, s.name)
	}
	p := parkFor(err)
	p.State, p.Captures = store.Retry, b.msgs[i].Key != ""
	p.at = max(s.pause.until, e.now) + time.Duration(e.rng.Int64N(int64(e.cfg.OutageBase)))
	switch {
	case !b.parked || p.Captures:
	case untried && !s.free: // captured keys are due at each end of the pause: without a turn of its own the record would starve
		s.free, p.at = true, max(s.pause.until, e.now)
	default: // written again whenever it is read: less often while the outage lasts
		p.at += min(2*max(s.pause.until-s.tripped, 0), e.cfg.OutageMax)
	}
	before, suspected := l.suspects[b.meta[i].Seq]
	if suspected && s.silent { // those that have not been sent alone come first
		p.at += e.retryDelay(before.Tries)
	}
	e.park(l, b, i, p)
	if suspected { // what is known of it holds
		l.suspects[b.meta[i].Seq] = before
	}
	l.captured.WaitFor(b.msgs[i].Key, s.name)
}

func parkFor(err *broker.Error) park { return park{Park: mark.Park(err)} }
