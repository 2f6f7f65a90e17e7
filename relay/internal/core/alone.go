package core

import (
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/store"
)

// solo is the state of a batch whose messages are sent one by one because their
// fate stayed unknown together: one of them may make the broker hang up.
type solo struct {
	after   int                   // index of the message that was sent last in this round, -1: none
	behind  keySet                // keys whose head is unknown in this round
	unknown map[int]time.Duration // when a message was sent alone and its fate stayed unknown
	tries   map[int]int           // how often that was so
}

// suspect is a parked record whose fate was unknown when it was sent alone.
type suspect struct {
	place string        // where it goes
	at    time.Duration // when it was sent last
	tries int
}

// unknownRound counts a round that ended with unknown fates, and turns to
// sending singly after some.
func (e *Engine) unknownRound(r *round) {
	l, b := r.c.lane, r.c.b
	if b.alone != nil {
		if i := r.c.idx[0]; len(r.stay) > 0 {
			b.alone.after = i
			b.alone.behind.add(b.msgs[i].Key)
			b.alone.unknown[i] = r.c.sentAt
			b.alone.tries[i]++
		}
		return
	}
	b.rounds++
	if b.rounds >= unknownRounds || b.parked {
		b.alone = &solo{after: -1, behind: keySet{}, unknown: map[int]time.Duration{}, tries: map[int]int{}}
	}
	e.pauseFor(&l.hold, e.cfg.OutageBase, e.cfg.OutageMax)
}

// chunkAlone picks the next message to be sent singly. At the end of a round
// the lane pauses, and takes the next batch in so that other messages can show
// that the broker works.
func (e *Engine) chunkAlone(l *lane, c *call) []postrider.Message {
	b, a := c.b, c.b.alone
	for n := 0; n < len(b.todo); n++ {
		i := b.todo[n]
		m := &b.msgs[i]
		if i <= a.after || a.behind.has(m.Key) {
			continue
		}
		if l.holds(b, m.Key) {
			e.wait(l, b, i)
			b.todo = without(b.todo, []int{i})
			n--
			continue
		}
		if e.heldScope(e.placeOf(m), c) != nil {
			a.behind.add(m.Key)
			continue
		}
		c.idx = []int{i}
		at, seen := l.unknownAt(b, i)
		c.proven = seen && e.works(e.placeOf(m), at)
		e.watch(e.placeOf(m))
		return b.msgs[i : i+1]
	}
	if len(b.todo) == 0 {
		return nil
	}
	a.after, a.behind = -1, keySet{}
	e.absorb(l, b)
	e.pauseFor(&l.hold, e.cfg.OutageBase, e.cfg.OutageMax)
	return nil
}

// absorb joins the next batch of the lane to b.
func (e *Engine) absorb(l *lane, b *batch) {
	if l.done+1 >= len(l.queue) || b.parked {
		return
	}
	next := l.queue[l.done+1]
	n := len(b.msgs)
	b.msgs = append(b.msgs[:n:n], next.msgs...)
	b.meta = append(b.meta[:n:n], next.meta...)
	for i := n; i < len(b.meta); i++ {
		if b.meta[i].DueIn > 0 { // counted from b's read from now on
			b.meta[i].DueIn = min(b.meta[i].DueIn, never) + next.readAt - b.readAt
		}
		b.todo = append(b.todo, i)
	}
	b.bytes += next.bytes
	b.pos, b.prepared = next.pos, false
	l.queue = append(l.queue[:l.done+1], l.queue[l.done+2:]...)
}

// unknownAt is when message i of the batch was sent alone last and its fate stayed
// unknown.
func (l *lane) unknownAt(b *batch, i int) (at time.Duration, seen bool) {
	if b.parked {
		s, seen := l.suspects[b.meta[i].Seq]
		return s.at, seen
	}
	at, seen = b.alone.unknown[i]
	return at, seen
}

// stillUnknown decides on a message whose fate is unknown though it was sent
// alone. It reports true when the message is resolved: it has failed because its
// destination acknowledged others between the call before and this one, or it is
// parked again, without an attempt, so that the lane's other messages can go on
// and show whether its destination works. An acknowledgement that arrived during
// this call does not count: the destination may have recovered after the message
// was sent.
func (e *Engine) stillUnknown(c *call, i int, err *broker.Error) bool {
	l, b := c.lane, c.b
	if b.alone == nil {
		return false
	}
	if c.proven {
		e.failed(l, b, i, err)
		return true
	}
	at, seen := l.unknownAt(b, i)
	if !b.parked && !e.isLeftover(l, b, i) && !(seen && e.silent(l, b.msgs[i].Key, at)) {
		return false
	}
	tries := 1
	if b.parked {
		tries += l.suspects[b.meta[i].Seq].tries
	}
	p := parkFor(err)
	p.State, p.Captures = store.Retry, b.msgs[i].Key != ""
	e.pauseFor(&l.hold, e.cfg.OutageBase, e.cfg.OutageMax)
	p.at = l.hold.until + e.retryDelay(tries)
	e.park(l, b, i, p)
	if l.suspects == nil {
		l.suspects = map[int64]suspect{}
	}
	l.suspects[b.meta[i].Seq] = suspect{place: e.placeOf(&b.msgs[i]), at: c.sentAt, tries: tries}
	return true
}

// silent reports whether a message of unknown fate, sent alone at that time, may
// step aside because others were acknowledged since, none of them where it goes:
// its destination may take nothing, and they are not to wait for it.
func (e *Engine) silent(l *lane, key string, at time.Duration) bool {
	_, captured := l.captured[key]
	full := len(l.captured) >= e.cfg.ParkedKeys && !captured || l.records >= e.cfg.maxParked()
	return e.anyAck && e.ackSentAt > at && !full
}

// watch makes acknowledgements at a place count from now on: a message that was
// sent there alone may turn out to be of unknown fate.
func (e *Engine) watch(place string) {
	if _, ok := e.watched[place]; !ok {
		e.watched[place] = 0
	}
}

// works reports whether something that was sent to the place after that time was
// acknowledged. One anywhere else proves nothing: a queue that confirms nothing
// would use up the attempts of all that is sent to it.
func (e *Engine) works(place string, after time.Duration) bool { return e.watched[place] > after }

// prove notes an acknowledgement where one is waited for.
func (e *Engine) prove(c *call, place string) {
	if at, ok := e.watched[place]; ok {
		e.watched[place] = max(at, c.sentAt)
	}
}

// endWatch forgets the places when no message's fate depends on them.
func (e *Engine) endWatch() {
	if len(e.watched) == 0 {
		return
	}
	for _, l := range e.held {
		if len(l.suspects) > 0 || l.done < len(l.queue) && l.queue[l.done].alone != nil {
			return
		}
	}
	clear(e.watched)
}

// isLeftover reports whether message i is one of a few that hold up a batch
// whose other messages were acknowledged, or behind which nothing can be read:
// the window is full, parked records wait for the lane to run empty, or the sink
// counts as down. Nothing else of the lane can prove then that they are to blame,
// so they step aside, also at the cap of parked keys: a paused lane reads nothing
// else, and does not look at what is parked before it has run empty.
func (e *Engine) isLeftover(l *lane, b *batch, i int) bool {
	sink := e.scopes[""]
	blind := e.room(l) == 0 || l.paused || e.wantsParked(l) || sink != nil && sink.open
	return (b.delivered > 0 || blind && l.done+1 == len(l.queue)) && len(b.todo) <= leftovers &&
		b.alone.tries[i] >= unknownRounds
}
