package sim

import (
	"slices"
	"time"
)

// during checks in wide worlds, while faults last, what they do not cover: messages of other
// destinations arrive, and acts of people are executed, in bounded time.
type during struct {
	waiting []*msg
	tainted map[int]bool  // keys with a dead letter, or one that a person has set aside
	faults  []op          // all but transactions and acts, by their beginning
	second  time.Duration // where sent began
	sent    int           // messages
}

// How long a message waits at most whose destination no fault covers, and an act.
const (
	turnWithin = 15 * time.Second
	actWithin  = 60 * time.Second
	lookEvery  = 5 * time.Second
)

func (w *world) watchDuring() {
	if w.plan.Wide == nil {
		return
	}
	c := &w.check.during
	c.tainted = map[int]bool{}
	for _, o := range w.plan.Ops {
		if o.Kind != opTx && o.Kind != opAct {
			c.faults = append(c.faults, o)
		}
	}
	w.after(lookEvery, w.lookDuring)
}

func (w *world) lookDuring() {
	if w.healed {
		return
	}
	w.check.late()
	w.after(lookEvery, w.lookDuring)
}

// taint excludes the messages of a key whose head may stay, and those that stand alone.
func (c *checker) taint(m *msg) {
	if c.during.tainted != nil && m.key >= 0 {
		c.during.tainted[m.key] = true
	}
}

// await keeps what a transaction has committed.
func (c *checker) await(t *simTx) {
	if c.during.tainted == nil || c.w.healed {
		return
	}
	for _, m := range t.msgs {
		m.committed = c.w.now
		if m.kind == msgGood || m.kind == msgScheduled {
			c.during.waiting = append(c.during.waiting, m)
		}
	}
}

// late fails when a message or an act has waited for too long.
func (c *checker) late() {
	d := &c.during
	if c.w.plan.Wide.Rate > 0 { // they wait for it
		d.waiting = nil
	}
	d.waiting = slices.DeleteFunc(d.waiting, func(m *msg) bool {
		return m.copies > 0 || m.dead > 0 || m.discarded > 0 || d.tainted[m.key]
	})
	for _, m := range d.waiting {
		since, limit := c.disturbed(max(m.committed, m.due-c.w.ahead), m)
		if waits := c.w.now - since; waits > limit {
			c.fail("S", "message %s of key %d, destination %s, was committed at %v and nothing has covered it since %v: %v are too long",
				m.id, m.key, c.w.plan.destName(m.key), m.committed, since, waits)
		}
	}
	for id, a := range c.acts {
		since, _ := c.disturbed(a.at, nil)
		if waits := c.w.now - since; waits > actWithin {
			c.fail("S", "act %d (%s) was asked for at %v, nothing was in its way since %v, and it is not executed after %v", id, a.kind, a.at, since, waits)
		}
	}
}

// rate checks that all nodes together keep to the rate of the pipe. One that has just begun
// sends a batch at once, and lanes that move count twice for a moment.
func (c *checker) rate(n *node, messages int) {
	x, d := c.w.plan.Wide, &c.during
	if x == nil || x.Rate == 0 {
		return
	}
	const span = 5
	if c.w.now >= d.second+span*time.Second {
		d.second, d.sent = c.w.now, 0
	}
	d.sent += messages
	if most := x.Rate*span*3/2 + 4*c.w.plan.Nodes*max(x.Rate/10, 1); d.sent > most {
		c.fail("R", "node %d sends message %d within %d s, the rate of %d a second allows %d", n.index, d.sent, span, x.Rate, most)
	}
}

// disturbed returns when the last fault ended that could have been in the way of m, or of
// any act when m is nil, and how long m may wait from then on.
func (c *checker) disturbed(since time.Duration, m *msg) (time.Duration, time.Duration) {
	limit := turnWithin
	for _, o := range c.during.faults {
		if o.At > c.w.now {
			break
		}
		end := o.At + o.Dur
		switch o.Kind {
		case opStart:
			end += 2 * leaseTTL
		case opStep: // a retry without a key waits until the clock shows its time again
			end = o.At + max(o.Dur, -o.Dur) + 2*leaseTTL
		case opDrain:
			end += drainLimit
		case opCrash, opPause, opSuspend, opJump:
			end += 2 * leaseTTL
		case opOutage, opThrottle, opRefuse, opSilent:
			if o.N >= 0 && (m == nil || c.w.plan.dest(m.key) != o.N) {
				continue
			}
			if most := 4 * c.w.plan.Wide.OutageMax; m != nil && end+most >= since { // a key waits behind what met the fault
				limit = turnWithin + most
			}
		case opHold:
			if m != nil && !c.covers(o, m) {
				continue
			}
			if m == nil {
				continue
			}
			end += actWithin // until the end of the pause is executed
		default: // of everything, until it ends
		}
		since = max(since, min(end, c.w.now))
	}
	return since, limit
}

// covers reports whether a person's pause is one of the message's key or lane.
func (c *checker) covers(o op, m *msg) bool {
	if o.N >= 0 {
		return m.key == o.N
	}
	return m.key < 0 || c.w.db.LaneOf(keyName(m.key)) == laneOfHold(o)
}
