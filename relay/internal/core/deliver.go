package core

import (
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/relay/internal/backoff"
	"github.com/postrider/postrider/relay/internal/mark"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/relay/internal/sets"
	"github.com/postrider/postrider/store"
)

// call is one Deliver in flight. Without idx it holds the messages [from, to)
// of the batch, with idx those.
type call struct {
	id       port.ID
	lane     *lane // nil once the lane is gone
	laneID   store.Lane
	b        *batch
	from, to int
	idx      []int
	sentAt   time.Duration
	probes   []*scope
	cut      bool // cancelled because the lease ran out
	first    bool // nothing of its batch had been sent
	proven   bool // its place acknowledged others since its one message was not, last
	others   bool // the sink did
	wasOut   bool // an outage was the answer, last
	lone     bool // its one message is sent alone
}

func (c *call) size() int {
	if c.idx != nil {
		return len(c.idx)
	}
	return c.to - c.from
}

func (c *call) at(j int) int {
	if c.idx != nil {
		return c.idx[j]
	}
	return c.from + j
}

// planDeliver starts the next call of every lane that has none, beginning with
// another lane each time so that the probes of an outage rotate.
func (e *Engine) planDeliver() {
	if !e.lease.valid || e.cutOff {
		return
	}
	e.turn++
	switch { // the lane behind that of the last probe, or call, has the next one
	case e.rate.PerSecond > 0:
		e.turn, _ = e.find(e.rate.By + 1)
	case len(e.scopes) > 0:
		e.turn, _ = e.find(e.probed + 1)
	}
	if e.planAlone() {
		return
	}
	for i := range e.held {
		e.deliverNext(e.held[(i+e.turn)%len(e.held)])
	}
}

func (e *Engine) deliverNext(l *lane) {
	for l.call == nil && l.done < len(l.queue) && e.abandoned[l.id] == 0 && e.now >= max(l.hold.until, l.resumes) {
		b := l.queue[l.done]
		if b.suspect != (e.only == l) {
			return
		}
		if b.ahead && !e.goesAhead(l, b) {
			e.forgetAhead(l)
			continue
		}
		if e.paused && !b.sent && !b.marking {
			return
		}
		if b.alone != nil && b.alone.Outage {
			e.absorb(l, b)
		}
		if !b.prepared {
			e.setAside(l, b)
		}
		if b.resolved() {
			e.finish(l)
			continue
		}
		if e.sinkHeld() || e.now < e.rate.At {
			return
		}
		c := &call{id: e.id(), lane: l, laneID: l.id, b: b, sentAt: e.now}
		msgs := e.chunk(l, c)
		if len(msgs) == 0 {
			if b.prepared && !b.resolved() && !(l.resumes > e.now && e.absorb(l, b)) { // else it has more to be looked at
				return // held back by a destination; l.resumes says until when
			}
			continue
		}
		l.resumes = 0
		if b.suspect && !e.mark(l, c) {
			return
		}
		if b.alone != nil || len(l.suspects) > 0 {
			e.weigh(l, c)
		}
		if s := e.scopes[""]; s.isOut() {
			s.probe = c
			c.probes = append(c.probes, s)
		}
		l.call, c.first, b.sent = c, !b.sent, true
		e.calls[c.id] = c
		e.rate.Spend(e.now, l.id, len(msgs))
		e.do(port.Deliver{ID: c.id, Lane: l.id, Msgs: e.marked(c, msgs), Timeout: e.cfg.DeliverTimeout})
	}
}

// marked returns the messages of a call as they go out.
func (e *Engine) marked(c *call, msgs []postrider.Message) []postrider.Message {
	l, claim := c.lane, e.cfg.Claim
	if len(l.gaps) == 0 && !c.b.parked && claim == nil {
		return msgs
	}
	m := mark.Call{Gaps: l.gaps, Meta: func(j int) *store.Meta { return &c.b.meta[c.at(j)] }}
	if claim != nil {
		m.Claim = func(seq int64, m *postrider.Message) string { return claim(l.id, seq, m) }
	}
	return mark.Messages(m, msgs)
}

// setAside parks what must not be sent now: messages that are not yet due, or that
// wait behind a captured key. A message that may be too large is sent: the limit of
// a sink changes while it runs, and its rejections pass the brake.
func (e *Engine) setAside(l *lane, b *batch) {
	b.prepared = true
	e.resolveAhead(l, b)
	if !e.mustLook(l, b) {
		return
	}
	b.goSlow()
	keep := b.todo[:0]
	for _, i := range b.todo {
		m := &b.msgs[i]
		switch {
		case !b.parked && b.meta[i].DueIn > 0:
			e.park(l, b, i, park{Park: store.Park{State: store.Scheduled}, at: b.readAt + min(b.meta[i].DueIn, never)})
		case b.aside:
			e.putAside(l, b, i)
		case l.holds(b, m.Key):
			e.wait(l, b, i)
		default:
			keep = append(keep, i)
		}
	}
	b.todo = keep
}

func (e *Engine) mustLook(l *lane, b *batch) bool {
	if (len(l.captured) > 0 || b.aside) && !b.parked {
		return true
	}
	for i := range b.meta {
		if b.meta[i].DueIn > 0 && !b.parked {
			return true
		}
	}
	return false
}

// holds reports whether a message of the key must wait behind a parked one.
func (l *lane) holds(b *batch, key string) bool {
	if key == "" {
		return false
	}
	if b.parked {
		return b.failed.Has(key)
	}
	return l.captured.Has(key)
}

// chunk picks what the next call of the lane's batch holds.
func (e *Engine) chunk(l *lane, c *call) []postrider.Message {
	b := c.b
	if e.hasOpenDestination() || b.alone != nil {
		b.goSlow()
	}
	if !b.slow {
		c.from, c.to = b.next, b.next
		for size := 0; c.to < len(b.msgs); c.to++ {
			if !e.fits(b, c.to, c.to-c.from, &size) {
				break
			}
		}
		return b.msgs[c.from:c.to]
	}
	if b.alone != nil {
		return e.chunkAlone(l, c)
	}
	return e.chunkSlow(l, c)
}

// fits adds message i to a call that holds n of size bytes, if it may.
func (e *Engine) fits(b *batch, i, n int, size *int) bool {
	if s := e.cfg.Sink.MaxBatch; s > 0 && n >= s || n >= e.cfg.Page { // of batches that were joined
		return false
	}
	if s := e.cfg.Sink.MaxBatchBytes; s > 0 {
		*size += b.msgs[i].Size()
		return n == 0 || *size <= s
	}
	return true
}

func (e *Engine) chunkSlow(l *lane, c *call) []postrider.Message {
	b := c.b
	var (
		msgs    []postrider.Message
		keep    []int // unresolved after this look, those of the call included
		stays   = sets.Keys{}
		size    int
		resumes time.Duration
		lone    = -1 // a message of a silent destination that may be tried
	)
	c.idx = make([]int, 0, len(b.todo))
	full := false
	for _, i := range b.todo {
		m := &b.msgs[i]
		if l.holds(b, m.Key) {
			e.wait(l, b, i)
			continue
		}
		if full || stays.Has(m.Key) {
			keep = append(keep, i)
			continue
		}
		place := e.placeOf(m)
		if s := e.openAt(place); s != nil && s.silent && s.mayTry(e.now) {
			lone = l.rested(b, lone, i)
			stays.Add(m.Key)
			keep = append(keep, i)
			continue
		}
		if s := e.heldScope(place, c); s != nil {
			if e.divert(l, b, i, s, nil) {
				continue
			}
			resumes = backoff.Earliest(resumes, s.pause.until)
			stays.Add(m.Key)
			keep = append(keep, i)
			continue
		}
		keep = append(keep, i)
		if full = !e.fits(b, i, len(msgs), &size); full {
			continue
		}
		msgs = append(msgs, *m)
		c.idx = append(c.idx, i)
	}
	b.todo = keep
	if len(msgs) == 0 && lone >= 0 {
		return e.sendAlone(c, lone)
	}
	if len(msgs) == 0 && len(keep) > 0 {
		l.resumes = max(resumes, e.now+e.cfg.OutageBase)
	}
	return msgs
}
