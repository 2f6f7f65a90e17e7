package core

import (
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/backoff"
	"github.com/postrider/postrider/relay/internal/blame"
	"github.com/postrider/postrider/relay/internal/sets"
	"github.com/postrider/postrider/relay/internal/solo"
	"github.com/postrider/postrider/store"
)

// singly reports whether the lane sends the rest of a partly acknowledged batch
// singly. Such a lane is not handed over: a hand-over waits for that rest without
// reading on, and only the messages behind the rest could end the wait.
func (l *lane) singly() bool {
	return l.done < len(l.queue) && l.queue[l.done].alone != nil && l.queue[l.done].delivered > 0
}

// unknownRound counts a round that ended with unknown fates, and turns to
// sending singly after some. A message that was sent alone holds its destination, and its lane
// needs no pause.
func (e *Engine) unknownRound(r *round) {
	l, b := r.c.lane, r.c.b
	if r.c.lone {
		if b.alone == nil {
			b.alone = solo.New()
		}
		b.alone.Outage = false
		if i := r.c.idx[0]; len(r.stay) > 0 {
			b.alone.Note(b.meta[i].Seq, b.msgs[i].Key, r.c.sentAt, false)
		}
		return
	}
	b.rounds++
	if b.rounds >= unknownRounds || b.parked {
		b.alone = solo.New()
	}
	e.pauseFor(&l.hold, e.cfg.OutageBase, e.cfg.OutageMax)
}

// chunkAlone picks the next message to be sent singly. At the end of a round the lane
// takes the next batch in so that other messages can show that the broker works. Silence
// and outages hold their destination, which is pause enough; once an outage is over the
// suspects alone are sent singly.
func (e *Engine) chunkAlone(l *lane, c *call) []postrider.Message {
	b, a := c.b, c.b.alone
	over := a.Outage && e.outageOver(a)
	for {
		i, resumes, suspects := e.nextAlone(l, c, over)
		switch {
		case i >= 0:
			return e.sendAlone(c, i)
		case len(b.todo) == 0:
			return nil
		case over && !suspects:
			b.alone, b.outages = nil, 0
			return e.chunkSlow(l, c)
		case resumes > 0:
			l.resumes = max(resumes, e.now+e.cfg.OutageBase)
			return nil
		}
		sent := a.Next()
		if e.absorb(l, b) {
			return nil
		}
		if !sent {
			e.pauseFor(&l.hold, e.cfg.OutageBase, e.cfg.OutageMax)
			return nil
		}
	}
}

// sendAlone makes the call one of message i alone.
func (e *Engine) sendAlone(c *call, i int) []postrider.Message {
	m := &c.b.msgs[i]
	place := e.placeOf(m)
	e.heldScope(place, c) // it is the probe of its destination
	e.watched.Watch(place)
	c.idx, c.lone = []int{i}, true
	return c.b.msgs[i : i+1]
}

// hush holds the destination of a message that was sent alone and met silence: it costs the
// others no more than one call in each of its pauses.
func (e *Engine) hush(c *call, place string) *scope {
	s := e.scope(e.destination(place))
	s.silent = e.hold(s, c) || s.silent
	return s
}

// nextAlone returns the next message of the round, or -1 at its end: then resumes is
// when a held destination may be tried, 0 when none is held. With only, it looks for
// suspects alone; at the end suspects reports whether the round has any. What goes to a silent
// destination comes last of the log.
func (e *Engine) nextAlone(l *lane, c *call, only bool) (next int, resumes time.Duration, suspects bool) {
	b, a, stays := c.b, c.b.alone, sets.Keys{}
	next = -1
	for n := 0; n < len(b.todo); n++ {
		i := b.todo[n]
		m := &b.msgs[i]
		seq := b.meta[i].Seq
		_, suspected := a.Unknown[seq]
		suspects = suspects || suspected && !stays.Has(m.Key) // before one may stand what was not due when it was sent
		if a.Sent[seq] || a.Behind.Has(m.Key) || stays.Has(m.Key) {
			stays.Add(m.Key) // one before it in its key is unresolved
			continue
		}
		if l.holds(b, m.Key) {
			e.wait(l, b, i)
			b.todo = sets.Without(b.todo, []int{i})
			n--
			continue
		}
		if only && !suspected {
			stays.Add(m.Key)
			continue
		}
		place := e.placeOf(m)
		s := e.openAt(place)
		if s != nil && !s.mayTry(e.now) {
			if e.divert(l, b, i, s, nil) {
				if suspected && !b.parked {
					e.suspectAgain(c, i, blame.Suspect{Place: strings.Clone(place), At: a.Unknown[seq], Tries: a.Tries[seq], Out: a.Out[seq]})
				}
				b.todo = sets.Without(b.todo, []int{i})
				n--
				continue
			}
			resumes = backoff.Earliest(resumes, s.pause.until)
			stays.Add(m.Key)
			continue
		}
		if !b.parked && (s == nil || !s.silent) {
			return i, 0, true
		}
		next = l.rested(b, next, i)
		stays.Add(m.Key)
	}
	return next, resumes, suspects || next >= 0
}

// rested returns which message goes first, i or a former one; a former of -1 stands for none. The
// log keeps its order. A parked record that was sent alone longer ago goes before the others.
func (l *lane) rested(b *batch, former, i int) int {
	if former < 0 || b.parked && l.suspects[b.meta[i].Seq].At < l.suspects[b.meta[former].Seq].At {
		return i
	}
	return former
}

// outageOver reports whether the outage that led to sending singly has ended.
func (e *Engine) outageOver(a *solo.Round) bool {
	if a.Proved || !a.Scoped {
		return a.Proved
	}
	for _, s := range e.scopes { // order does not matter
		if s.open && !s.silent {
			return false
		}
	}
	return true
}

// outageRound counts a call that ended in an outage without an acknowledgement.
// After some of them it turns to sending singly: one message may be the cause, and
// the others must have their turn.
func (e *Engine) outageRound(r *round) {
	b := r.c.b
	switch {
	case b.alone != nil:
		if len(r.stay) == 0 || r.unknown != nil {
			return
		}
		i := r.c.idx[0]
		b.alone.Note(b.meta[i].Seq, b.msgs[i].Key, r.c.sentAt, true)
		e.watched.Watch(e.placeOf(&b.msgs[i]))
		e.watched.Watch(r.out.Destination)
	case r.acked > 0:
		b.outages = 0
	default:
		if b.outages++; b.outages >= unknownRounds {
			b.alone = solo.New()
			b.alone.Outage, b.alone.Scoped = true, len(e.scopes) > 0
		}
	}
}

// stillOut decides on a message that an outage answered though it was sent alone.
// It reports true when the message is set aside: without an attempt, so that others
// of its lane have their turn, or with one when its destination has taken others
// between its outages, several times. An outage of everybody sets nothing aside,
// but for a few messages that parked records of their lane wait for.
func (e *Engine) stillOut(r *round, i int, err *broker.Error) bool {
	c, l, b := r.c, r.c.lane, r.c.b
	m := &b.msgs[i]
	if !c.ofOneKey() {
		return false
	}
	before, tries := l.suspects[b.meta[i].Seq], 0
	if b.alone != nil {
		tries = b.alone.Tries[b.meta[i].Seq] + 1
	}
	at, seen := l.unknownAt(b, i)
	works := c.proven || c.others && err.Destination == ""
	s := blame.Suspect{Place: strings.Clone(e.placeOf(m)), At: c.sentAt, Tries: before.Tries + 1, Proofs: before.Proofs, Out: true, Blind: before.Blind}
	p := parkFor(err)
	p.State, p.Captures = store.Retry, m.Key != ""
	switch {
	case works && err.Class == broker.ClassOutage && before.Proofs+1 >= outageProofs && e.few(blame.Cause{Place: s.Place, Out: true}):
		e.charge(c, i, blame.Suspect{Place: s.Place, At: s.At, Out: true}, err)
		e.watched.Watch(err.Destination)
		return true
	case works && err.Class == broker.ClassThrottled: // which says nothing of the message
		p.at = e.now + max(e.retryDelay(s.Tries), min(err.RetryAfter, e.cfg.OutageMax))
	case works:
		s.Proofs++
		p.at = e.now + e.retryDelay(s.Tries)
	case seen && e.silent(l, m.Key, at), b.parked && tries >= unknownRounds, tries >= unknownRounds && e.inTheWay(l):
		until := e.now
		if err.Destination == "" {
			r.outage = err
		} else {
			e.trip(e.scope(err.Destination), c, err)
			until = e.scope(err.Destination).pause.until
		}
		p.at = max(until, e.now) + e.jittered(e.cfg.OutageMax, e.cfg.OutageMax, 1)
		if !b.parked {
			s.Blind = e.now
		}
	default:
		return false
	}
	e.park(l, b, i, p)
	e.suspectAgain(c, i, s)
	e.watched.Watch(err.Destination)
	return true
}

// charge counts an attempt at a message that is to blame itself, as far as others of its
// place show, and keeps it among those of its place.
func (e *Engine) charge(c *call, i int, s blame.Suspect, err *broker.Error) {
	e.failed(c.lane, c.b, i, err)
	if c.b.parks[len(c.b.parks)-1].State == store.Retry {
		e.suspectAgain(c, i, s)
		return
	}
	e.blamed.Add(blame.Cause{Place: s.Place, Out: s.Out})
}

// few reports whether so few messages are answered with an outage, or with silence,
// where others of their place are acknowledged that each may be to blame itself. More
// of them are an outage of a part of the place, such as one partition of a topic.
func (e *Engine) few(of blame.Cause) bool {
	n := e.blamed[of]
	for _, l := range e.held {
		n += l.suspects.Of(of)
		if !of.Out {
			n += e.silentOnes(l, of.Place)
		}
	}
	return n <= blame.Most
}

// silentOnes counts the messages of the log that go to the place and were sent alone,
// with no answer.
func (e *Engine) silentOnes(l *lane, place string) (n int) {
	if l.done >= len(l.queue) {
		return 0
	}
	b := l.queue[l.done]
	if b.alone == nil || b.parked {
		return 0
	}
	for _, i := range b.todo {
		seq := b.meta[i].Seq
		if _, seen := b.alone.Unknown[seq]; seen && !b.alone.Out[seq] && e.placeOf(&b.msgs[i]) == place {
			n++
		}
	}
	return n
}

// cleared notes that a parked record was acknowledged: if it was not before, also as a
// dead letter that a person sends again, the part of its place that it goes to recovers.
func (e *Engine) cleared(l *lane, b *batch, i int) {
	if s, ok := l.suspects[b.meta[i].Seq]; ok {
		delete(e.blamed, blame.Cause{Place: s.Place, Out: s.Out})
	}
	if b.meta[i].Generation > 0 && len(e.blamed) > 0 {
		e.blamed.Forget(e.placeOf(&b.msgs[i]))
	}
}

// ofOneKey reports whether the call holds one message and, at the most, others
// behind it in its key, which are not tried when it fails.
func (c *call) ofOneKey() bool {
	key := c.b.msgs[c.at(0)].Key
	for j := 1; j < c.size(); j++ {
		if key == "" || c.b.msgs[c.at(j)].Key != key {
			return false
		}
	}
	return true
}

// suspectAgain keeps what is known of a parked record that was not acknowledged though it
// was sent alone, until it is sent again.
func (e *Engine) suspectAgain(c *call, i int, s blame.Suspect) {
	l := c.lane
	if l.suspects == nil {
		l.suspects = blame.Suspects{}
	}
	l.suspects[c.b.meta[i].Seq] = s
	e.watched.Watch(s.Place)
}

// inTheWay reports whether a last batch of which nothing goes is all that the lane
// can hold, or parked records or acts of people wait for it. A few messages may step
// aside so between two acknowledgements: an outage of everybody parks no more. Those
// of lanes that were lost do not count: they may stand in front of their lane again.
func (e *Engine) inTheWay(l *lane) bool {
	if e.room(l) > 0 && !l.paused && !e.wantsParked(l) || l.done+1 != len(l.queue) {
		return false
	}
	n := 0
	for _, other := range e.held {
		n += other.suspects.Blind(e.lastAck)
	}
	return n < asideMost
}

// crowded reports whether so many records stand behind messages that stepped aside
// in an outage that no more are to be read before something is acknowledged.
func (e *Engine) crowded(l *lane) bool {
	return l.records >= max(asideBehind*e.cfg.Window, 256) && l.suspects.OutSince(e.ackSentAt)
}

// absorb joins the next batch of the lane to b, which is looked at anew, and reports whether it did.
func (e *Engine) absorb(l *lane, b *batch) bool {
	if l.done+1 >= len(l.queue) || b.parked {
		return false
	}
	next := l.queue[l.done+1]
	if next.ahead {
		e.forgetAhead(l)
		return false
	}
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
	b.pos, b.end, b.prepared, l.resumes = next.pos, next.end, false, 0
	l.queue = slices.Delete(l.queue, l.done+1, l.done+2)
	return true
}

// unknownAt is when message i of the batch was sent alone last and its fate stayed
// unknown.
func (l *lane) unknownAt(b *batch, i int) (at time.Duration, seen bool) {
	if b.parked {
		s, seen := l.suspects[b.meta[i].Seq]
		return s.At, seen && !s.Counted
	}
	if b.alone == nil {
		return 0, false
	}
	at, seen = b.alone.Unknown[b.meta[i].Seq]
	return at, seen
}

// weigh notes what was acknowledged between the call before of a message that is
// sent alone and this one.
func (e *Engine) weigh(l *lane, c *call) {
	i := c.at(0)
	at, seen := l.unknownAt(c.b, i)
	if !seen || !c.ofOneKey() {
		return
	}
	place := e.placeOf(&c.b.msgs[i])
	c.proven = e.works(place, at) || e.works(e.destination(place), at)
	c.others = e.anyAck && e.ackSentAt > at
	c.wasOut = c.b.alone != nil && c.b.alone.Out[c.b.meta[i].Seq]
	if c.b.parked {
		c.wasOut = l.suspects[c.b.meta[i].Seq].Out
	}
}

// stillUnknown decides on a message whose fate is unknown though it was sent
// alone. It reports true when the message is resolved: it has failed because its
// destination acknowledged others between the call before and this one, or it is
// parked again, without an attempt, so that the lane's other messages can continue
// and show whether its destination works. An acknowledgement that arrived during
// this call does not count: the destination may have recovered after the message
// was sent. Nor does one that followed an outage: the outage said nothing of it.
func (e *Engine) stillUnknown(c *call, i int, err *broker.Error) bool {
	l, b := c.lane, c.b
	if !c.lone {
		return false
	}
	place := strings.Clone(e.placeOf(&b.msgs[i]))
	if c.proven && !c.wasOut && e.few(blame.Cause{Place: place}) {
		e.charge(c, i, blame.Suspect{Place: place, At: c.sentAt, Counted: true}, err)
		return true
	}
	at, seen := l.unknownAt(b, i)
	s := e.hush(c, place)
	if !b.parked && !e.isLeftover(l, b, i) && !(seen && e.silent(l, b.msgs[i].Key, at)) && !e.mayDivert(l, b.msgs[i].Key, s) {
		return false
	}
	before := l.suspects[b.meta[i].Seq]
	tries := 1
	if b.parked {
		tries += before.Tries
	}
	p := parkFor(err)
	p.State, p.Captures = store.Retry, b.msgs[i].Key != ""
	p.at = max(s.pause.until, e.now) + e.retryDelay(tries)
	e.park(l, b, i, p)
	l.captured.WaitFor(b.msgs[i].Key, s.name)
	e.suspectAgain(c, i, blame.Suspect{Place: place, At: c.sentAt, Tries: tries, Blind: before.Blind})
	return true
}

// silent reports whether a message of unknown fate, sent alone at that time, may
// step aside because others were acknowledged since, none of them where it goes:
// its destination may take nothing, and they are not to wait for it.
func (e *Engine) silent(l *lane, key string, at time.Duration) bool {
	full := len(l.captured) >= e.cfg.ParkedKeys && !l.captured.Has(key) || l.records >= e.cfg.MaxParked()
	return e.anyAck && e.ackSentAt > at && !full
}

// works reports whether something that was sent to the place after that time was
// acknowledged. One anywhere else proves nothing: a queue that confirms nothing
// would use up the attempts of all that is sent to it.
func (e *Engine) works(place string, after time.Duration) bool { return e.watched[place] > after }

// prove notes an acknowledgement where one is waited for.
func (e *Engine) prove(c *call, place string) {
	e.watched.Proved(place, c.sentAt)
	e.watched.Proved(e.destination(place), c.sentAt)
}

// endWatch forgets the places when no message's fate depends on them.
func (e *Engine) endWatch() {
	if len(e.watched) == 0 {
		return
	}
	for _, l := range e.held {
		if l.suspects.Await() || l.done < len(l.queue) && l.queue[l.done].alone != nil {
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
	blind := e.room(l) == 0 || l.paused || e.wantsParked(l) || e.scopes[""].isOut()
	return b.alone != nil && (b.delivered > 0 || blind && l.done+1 == len(l.queue)) && len(b.todo) <= leftovers &&
		b.alone.Tries[b.meta[i].Seq] >= unknownRounds
}
