package core

import (
	"slices"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/mark"
	"github.com/postrider/postrider/store"
)

// A message may end the process that sends it. The only evidence is how many owners
// of its lane ended in a row without settling anything. After some of them the lane is
// narrow: it sends few messages at a time. When one more owner ends, the first of them
// are set aside as suspects. Suspects are sent while the instance sends nothing else,
// and an attempt is recorded before the call: the first of several together, every
// later one of one alone. An answer takes all attempts back.
const (
	crashNarrow = 3                     // owners that make a lane narrow
	crashAside  = 4                     // owners that make its messages suspects
	crashPage   = 16                    // most messages of a narrow lane at first, and of suspects that go together
	buriedMost  = 3                     // dead letters of a lane after which suspects stay retries
	crashShare  = 4                     // a call that lasts this share of its timeout has not ended the process
	crashRest   = 10 * time.Millisecond // shortest turn of the other lanes between two that go alone
	crashSign   = 15 * time.Second      // most that suspects wait for the broker's first sign of life
)

// suspectLane notes what the store knows of the lane's previous owners.
func (e *Engine) suspectLane(l *lane, g store.LaneGrant) {
	l.crashes, l.buried = g.Crashes, g.Buried
	if l.crashes >= crashNarrow {
		l.narrow = e.cfg.Window
	}
}

// absolve ends the suspicion of a lane that has run empty: its previous owners cannot
// have sent what comes now. A parked record that is due later does not prolong it: if
// it ended the owners, it is due at once when the next owner starts.
func (e *Engine) absolve(l *lane) {
	if due := l.hasDue && e.now >= l.due; !due && !l.refresh && len(l.requests) == 0 {
		l.trust()
		l.narrow = 0
	}
}

// trust forgets the lane's owners that ended, and which records outlived a try: they
// are told apart only while all records of the lane are suspects.
func (l *lane) trust() { l.crashes, l.survivors = 0, nil }

// narrowPage is how many messages of a narrow lane are read at a time: few at first,
// and as many again as have been acknowledged or set aside since.
func (e *Engine) narrowPage(l *lane) int { return max(crashPage, e.cfg.Window-l.narrow) }

// readsNarrow reports whether a narrow lane may read: it has run empty, or messages
// behind its first batch must show that the sink works. A lane whose messages would be
// set aside waits for the broker's first sign of life.
func (e *Engine) readsNarrow(l *lane) bool {
	switch {
	case l.narrow <= 0:
		return true
	case l.crashes >= crashAside && !e.brokerLives() && e.now < e.startedAt+crashSign:
		return false
	case len(l.queue) == 0:
		return true
	}
	if l.done >= len(l.queue) {
		return false
	}
	b := l.queue[l.done]
	return b.alone != nil || b.rounds > 0 || b.outages > 0
}

// single reduces a parked batch with suspects: to one that has attempts, or to those
// of some keys that have none. The other records are still due, and are read again.
func (e *Engine) single(l *lane, b *batch) {
	size := 0
	p := mark.Choose(b.msgs, b.meta, l.crashes >= crashAside, l.survivors, func(i, n int) bool { return n < crashPage && e.fits(b, i, n, &size) })
	b.suspect, b.ends = p.Suspects, p.Ends
	if len(p.Msgs) == len(b.msgs) {
		return
	}
	b.msgs, b.meta, b.bytes, l.refresh = p.Msgs, p.Meta, 0, true
	for i := range b.msgs {
		b.bytes += b.msgs[i].Size()
	}
}

// putAside parks a message of the log as a suspect.
func (e *Engine) putAside(l *lane, b *batch, i int) {
	p := park{Park: store.Park{State: store.Retry, Captures: b.msgs[i].Key != "", Code: store.CodeCrashed}, at: e.now}
	if l.holds(b, b.msgs[i].Key) {
		e.queueBehind(l, b.msgs[i].Key, b.meta[i].Seq)
		p.State, p.Captures, p.at = store.Waiting, false, 0
	}
	e.park(l, b, i, p)
}

// planAlone serves the lane whose next call is to be the only one in flight, until
// what it brought is settled. It reports whether the other lanes wait for it. They
// wait crashPatience at the most for the calls before it, and as long for its own:
// a call that has been in flight for that long has not ended the process, and no
// longer keeps anybody waiting. Then they have a turn that is as long as their wait.
func (e *Engine) planAlone() bool {
	if !e.wary {
		return false
	}
	if e.only != nil && !e.goesAlone(e.only) {
		e.endAlone()
	}
	if e.only == nil && !e.beginAlone() {
		return false
	}
	l := e.only
	if l.call == nil && !l.unsettledAlone() && !e.callsAreFresh() {
		e.deliverNext(l)
	}
	if l.call == nil || e.isFresh(l.call) || e.takeBack(l.call) {
		return true
	}
	e.endAlone()
	return false
}

// beginAlone picks the lane that goes alone next, and reports whether there is one.
func (e *Engine) beginAlone() bool {
	if e.now < e.freeUntil && slices.ContainsFunc(e.held, e.wantsOrdinary) {
		return false
	}
	for i := range e.held {
		if l := e.held[(i+e.turn)%len(e.held)]; l.call == nil && e.goesAlone(l) {
			e.only, e.aloneAt = l, e.now
			return true
		}
	}
	e.wary = slices.ContainsFunc(e.held, (*lane).hasLone)
	return false
}

func (e *Engine) endAlone() {
	e.only, e.freeUntil = nil, e.now+max(e.now-e.aloneAt, crashRest)
}

// goesAlone reports whether the lane has something to send alone, or has sent it and
// not settled it.
func (e *Engine) goesAlone(l *lane) bool {
	if !l.held {
		return false
	}
	if l.unsettledAlone() {
		return true
	}
	if l.done >= len(l.queue) || !l.queue[l.done].suspect {
		return false
	}
	return l.call != nil || l.queue[l.done].marking || e.mayBegin(l)
}

func (e *Engine) wantsOrdinary(l *lane) bool {
	return l.done < len(l.queue) && !l.queue[l.done].suspect && (l.call != nil || e.mayBegin(l))
}

// isFresh reports whether a call began so lately that it may still end the process.
func (e *Engine) isFresh(c *call) bool { return e.now < c.sentAt+e.crashPatience() }

func (e *Engine) callsAreFresh() bool {
	for _, c := range e.calls { // order does not matter
		if e.isFresh(c) {
			return true
		}
	}
	return false
}

// aloneTimes are the moments at which the turn of a lane, or of the others, ends.
func (e *Engine) aloneTimes(at func(time.Duration)) {
	at(e.startedAt + crashSign)
	if !e.wary {
		return
	}
	at(e.freeUntil)
	for _, c := range e.calls { // order does not matter
		at(c.sentAt + e.crashPatience())
	}
}

func (e *Engine) mayBegin(l *lane) bool {
	if l.queue[l.done].suspect && !e.brokerLives() && e.now < e.startedAt+crashSign {
		return false
	}
	return e.abandoned[l.id] == 0 && !e.holdsBack(l) && (!e.paused || l.queue[l.done].sent)
}

// brokerLives reports whether the broker has given this instance a sign of life. A
// relay that is killed before one, in an outage, must not cost a suspect an attempt.
func (e *Engine) brokerLives() bool { return e.anyAck || e.pong || e.cfg.Sink.Ping == nil }

func (l *lane) unsettledAlone() bool { return slices.ContainsFunc(l.queue[:l.done], isSuspect) }
func (l *lane) hasLone() bool        { return slices.ContainsFunc(l.queue, isSuspect) }
func isSuspect(b *batch) bool        { return b.suspect }

// mark records an attempt at suspects before they are sent, and reports whether they
// may be sent now. Before a sign of life from the broker no attempt is recorded.
func (e *Engine) mark(l *lane, c *call) bool {
	b, most := c.b, e.cfg.Retry.MaxAttempts
	if b.marked {
		return true
	}
	braked := l.buried >= buriedMost
	switch {
	case b.marking || e.settle != nil:
	case b.ends > most && !braked:
		e.bury(l, b)
	case e.now < e.startedAt+mark.AttemptAge(b.ends, most, e.cfg.DeliverTimeout):
		e.postpone(l, b, e.startedAt+mark.AttemptAge(b.ends, most, e.cfg.DeliverTimeout))
	case !e.brokerLives():
		return true
	default:
		b.marking = true
		e.settleMark(c, min(b.ends, most)+1, e.retryDelay(b.ends+1))
	}
	e.endProbe(c)
	return false
}

// settleMark settles nothing but the attempts of records that are parked already: those
// that the call sends.
func (e *Engine) settleMark(c *call, attempts int, due time.Duration) {
	l, b := c.lane, c.b
	s := store.Settlement{BootID: e.cfg.BootID, Lane: l.id, Epoch: l.epoch}
	for j := range c.size() {
		m := &b.meta[c.at(j)]
		p := mark.Suspect(&b.msgs[c.at(j)], m.Attempts, attempts, due)
		p.Seq = m.Seq
		s.Park = append(s.Park, p)
	}
	e.settle = &settleOp{lanes: []*lane{l}, mark: b, settlements: []store.Settlement{s}}
	e.sendSettle(e.settle)
}

// bury gives a suspect up that has used up its attempts.
func (e *Engine) bury(l *lane, b *batch) {
	e.dead(l, b, 0, mark.Crashed())
	b.parks[0].Attempts = b.ends - 1 // without the shared attempt
	l.buried++
	e.end(l, b)
}

// postpone leaves suspects that were not sent as they were, until another time.
func (e *Engine) postpone(l *lane, b *batch, at time.Duration) {
	p := parkFor(mark.Crashed())
	p.State, p.at = store.Retry, at
	for i := range b.msgs {
		p.Captures = b.msgs[i].Key != ""
		e.park(l, b, i, p)
	}
	e.end(l, b)
}

// end resolves a batch of which everything is parked.
func (e *Engine) end(l *lane, b *batch) {
	b.goSlow()
	b.todo = nil
	e.finish(l)
}

// takeBack takes the attempts back from suspects that have been sent for long and have
// not ended the process: a destination that answers nobody must not use attempts up
// while relays are killed for another reason. It reports whether that is still to be
// recorded.
func (e *Engine) takeBack(c *call) bool {
	b := c.b
	if !b.marked || b.cleared {
		return false
	}
	if e.settle == nil {
		e.settleMark(c, 0, e.retryDelay(1))
	}
	return true
}

// markSettled notes that the attempt at suspects was recorded, or taken back.
func (b *batch) markSettled() {
	if b.marked {
		b.cleared = true
	}
	b.marked = true
}

func (e *Engine) crashPatience() time.Duration { return e.cfg.DeliverTimeout / crashShare }

// survived parks a suspect whose fate an answer left open: its attempts are taken back,
// and it is one of many again, also in a lane whose owners ended.
func (e *Engine) survived(r *round, i int, err *broker.Error) {
	c := r.c
	l, b := c.lane, c.b
	if l.crashes >= crashAside {
		if l.survivors == nil {
			l.survivors = map[int64]struct{}{}
		}
		l.survivors[b.meta[i].Seq] = struct{}{}
	}
	p := parkFor(err)
	p.State, p.Captures = store.Retry, b.msgs[i].Key != ""
	p.at = e.now + e.jittered(e.cfg.OutageBase, e.cfg.OutageMax, 1)
	if err.Class == broker.ClassOutage || err.Class == broker.ClassThrottled {
		r.out = err
		s := e.scopes[""]
		if err.Destination == "" {
			r.outage = err
		} else {
			s = e.scope(err.Destination)
			e.trip(s, c, err)
		}
		if s != nil {
			p.at = max(p.at, s.pause.until)
		}
	}
	e.park(l, b, i, p)
}

// moved takes in that the lane made progress.
func (e *Engine) moved(l *lane, batches []*batch, s *store.Settlement) {
	if s.Delivered > 0 || s.Position != nil {
		l.trust()
	}
	for _, b := range batches {
		if l.narrow > 0 && !b.parked {
			l.narrow = max(l.narrow-b.size(), 0)
		}
		if b.end {
			e.absolve(l)
		}
	}
}
