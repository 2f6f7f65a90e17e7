package core

import (
	"slices"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/store"
)

// A message may end the process that sends it. The only evidence is how many owners
// of its lane ended in a row without settling anything. After some of them the lane is
// narrow: it sends few messages at a time, while the instance sends nothing else.
// When one more owner ends, the lane's messages are set aside as suspects. A suspect
// is sent alone, and an attempt is recorded before the call. An answer takes the
// attempt back.
const (
	crashNarrow = 3                     // owners that make a lane narrow
	crashAside  = 4                     // owners that make its messages suspects
	crashPage   = 16                    // most messages of a narrow lane at first
	buriedMost  = 3                     // dead letters of a lane after which suspects stay retries
	crashShare  = 4                     // a call that lasts this share of its timeout has not ended the process
	crashRest   = 10 * time.Millisecond // shortest turn of the other lanes between two that go alone
	crashSign   = 15 * time.Second      // most that suspects wait for the broker's first sign of life
)

const crashText = "the relay process ended each time it sent this message alone: look for panics and OOM kills in its log"

// suspectLane notes what the store knows of the lane's previous owners.
func (e *Engine) suspectLane(l *lane, g store.LaneGrant) {
	l.crashes, l.buried = g.Crashes, g.Buried
	if l.crashes >= crashNarrow {
		l.narrow = e.cfg.Window
	}
}

// absolve ends the suspicion of a lane that has run empty: its previous owners cannot
// have sent what comes now. A parked record that is due later is no reason to go on: if
// it ended them, it is due at once when the next one starts.
func (e *Engine) absolve(l *lane) {
	if due := l.hasDue && e.now >= l.due; !due && !l.refresh && len(l.requests) == 0 {
		l.crashes, l.narrow = 0, 0
	}
}

// narrowPage is how many messages of a narrow lane are read at a time: few at first,
// and as many again as have been acknowledged or set aside since.
func (e *Engine) narrowPage(l *lane) int { return max(crashPage, e.cfg.Window-l.narrow) }

// readsNarrow reports whether a narrow lane may read: it has run empty, or messages
// behind its first batch must show that the sink works.
func (l *lane) readsNarrow() bool {
	if l.narrow <= 0 || len(l.queue) == 0 {
		return true
	}
	if l.done >= len(l.queue) {
		return false
	}
	b := l.queue[l.done]
	return b.alone != nil || b.rounds > 0 || b.outages > 0
}

// single reduces a parked batch with suspects to the first of them. The other records
// are still due, and are read again.
func (e *Engine) single(l *lane, b *batch) {
	all := l.crashes >= crashAside
	suspect := func(i int) bool { return all || b.meta[i].Code == store.CodeCrashed }
	if l.narrow == 0 && !all && !slices.ContainsFunc(b.meta, func(m store.Meta) bool { return m.Code == store.CodeCrashed }) {
		return
	}
	before, behind := keySet{}, keySet{}
	var keep []int
	for i := range b.msgs {
		key := b.msgs[i].Key
		switch {
		case suspect(i) && !before.has(key) && !behind.has(key):
			b.lone, b.suspect = true, true
			b.msgs, b.meta, b.bytes = b.msgs[i:i+1:i+1], b.meta[i:i+1:i+1], b.msgs[i].Size()
			l.refresh = true
			return
		case suspect(i):
			behind.add(key)
		case !behind.has(key):
			keep = append(keep, i)
		}
		before.add(key)
	}
	b.lone = l.narrow > 0
	if len(keep) == len(b.msgs) {
		return
	}
	msgs, meta := make([]postrider.Message, 0, len(keep)), make([]store.Meta, 0, len(keep))
	b.bytes = 0
	for _, i := range keep {
		msgs, meta = append(msgs, b.msgs[i]), append(meta, b.meta[i])
		b.bytes += b.msgs[i].Size()
	}
	b.msgs, b.meta, l.refresh = msgs, meta, true
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
	if !e.holds(l) {
		return false
	}
	if l.unsettledAlone() {
		return true
	}
	if l.done >= len(l.queue) || !l.queue[l.done].lone {
		return false
	}
	return l.call != nil || l.queue[l.done].marking || e.mayBegin(l)
}

func (e *Engine) wantsOrdinary(l *lane) bool {
	return l.done < len(l.queue) && !l.queue[l.done].lone && (l.call != nil || e.mayBegin(l))
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
	if !e.wary {
		return
	}
	at(e.freeUntil)
	at(e.signBy)
	for _, c := range e.calls { // order does not matter
		at(c.sentAt + e.crashPatience())
	}
}

func (e *Engine) mayBegin(l *lane) bool {
	if l.queue[l.done].suspect && !e.brokerLives() && e.now < e.signBy {
		return false
	}
	return e.abandoned[l.id] == 0 && e.now >= l.hold.until && !e.sinkHeld() && (!e.paused || l.queue[l.done].sent)
}

// brokerLives reports whether the broker has given this instance a sign of life. A
// relay that is killed before one, in an outage, must not cost a suspect an attempt.
func (e *Engine) brokerLives() bool { return e.anyAck || e.pong || e.cfg.Sink.Ping == nil }

func (l *lane) unsettledAlone() bool { return slices.ContainsFunc(l.queue[:l.done], isLone) }
func (l *lane) hasLone() bool        { return slices.ContainsFunc(l.queue, isLone) }
func isLone(b *batch) bool           { return b.lone }

// mark records an attempt at a suspect before it is sent, and reports whether it may
// be sent now. While the destination is down, or the broker gives no sign of life, no
// attempt is recorded.
func (e *Engine) mark(l *lane, c *call) bool {
	b, i := c.b, c.at(0)
	if s := e.scopes[""]; b.marked || len(c.probes) > 0 || s != nil && s.open || !e.brokerLives() {
		return true
	}
	e.endProbe(c)
	attempts, braked := b.meta[i].Attempts, l.buried >= buriedMost
	switch {
	case b.marking || e.settle != nil:
		return false
	case attempts >= e.cfg.Retry.MaxAttempts && !braked:
		e.bury(l, b, i)
		return false
	}
	if attempts < e.cfg.Retry.MaxAttempts {
		attempts++
	}
	b.marking, b.sent = true, true
	e.settleMark(l, b, i, attempts, e.retryDelay(attempts))
	return false
}

// settleMark settles nothing but the attempts of a record that is parked already.
func (e *Engine) settleMark(l *lane, b *batch, i, attempts int, due time.Duration) {
	m := b.msgs[i]
	p := store.Park{
		Seq: b.meta[i].Seq, Message: m, State: store.Retry, DueIn: due, Captures: m.Key != "", Attempts: attempts,
		Class: broker.ClassUnknown.String(), Code: store.CodeCrashed, Error: crashText,
	}
	e.settle = &settleOp{
		lanes: []*lane{l}, mark: b,
		settlements: []store.Settlement{{BootID: e.cfg.BootID, Lane: l.id, Epoch: l.epoch, Park: []store.Park{p}}},
	}
	e.sendSettle(e.settle)
}

// bury gives a suspect up that has used up its attempts.
func (e *Engine) bury(l *lane, b *batch, i int) {
	e.dead(l, b, i, broker.Classify(broker.Unknown(errCrashed, store.CodeCrashed, "")))
	p := &b.parks[len(b.parks)-1]
	p.Attempts = b.meta[i].Attempts
	l.buried++
	b.goSlow()
	b.todo = nil
	e.finish(l)
}

// takeBack takes the attempt back from a suspect that has been sent for long and has
// not ended the process: a destination that answers nobody must not use attempts up
// while relays are killed for another reason. It reports whether that is still to be
// recorded.
func (e *Engine) takeBack(c *call) bool {
	b := c.b
	if !b.marked || b.cleared {
		return false
	}
	if e.settle == nil {
		i := c.at(0)
		e.settleMark(c.lane, b, i, b.meta[i].Attempts, e.retryDelay(1))
	}
	return true
}

// markSettled notes that the attempt at a suspect was recorded, or taken back.
func (b *batch) markSettled() {
	if b.marked {
		b.cleared = true
	}
	b.marked = true
}

func (e *Engine) crashPatience() time.Duration { return e.cfg.DeliverTimeout / crashShare }

// survived parks a suspect whose fate an answer left open: the attempt is taken back,
// and it is one of many again.
func (e *Engine) survived(r *round, i int, err *broker.Error) {
	c := r.c
	l, b := c.lane, c.b
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
		l.crashes = 0
	}
	for _, b := range batches {
		if l.narrow > 0 && !b.parked {
			l.narrow = max(l.narrow-len(b.msgs), 0)
		}
		if b.end {
			e.absolve(l)
		}
	}
}
