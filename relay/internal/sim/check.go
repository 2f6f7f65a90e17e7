package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/core"
	"github.com/postrider/postrider/store"
)

// violation is a broken promise, by its letter in docs/guarantees.md, or one of
// W (the window), Z (a send outside of a lease), X (dead without cause).
type violation struct {
	Letter string
	At     time.Duration
	Text   string
}

func (v *violation) String() string { return fmt.Sprintf("%s at %v: %s", v.Letter, v.At, v.Text) }

// checker knows what was written and sees what arrives. It asks the database
// through its inspection methods and the cores never.
type checker struct {
	w         *world
	broken    *violation
	msgs      map[string]*msg
	highest   map[int]int64 // by key
	dups      map[store.Lane]int
	incidents map[store.Lane]int
	acts      map[int64]*msg // open requests
}

func (c *checker) init() {
	c.msgs = map[string]*msg{}
	c.highest = map[int]int64{}
	c.dups, c.incidents = map[store.Lane]int{}, map[store.Lane]int{}
	c.acts = map[int64]*msg{}
}

func (c *checker) fail(letter, format string, args ...any) {
	if c.broken == nil {
		c.broken = &violation{letter, c.w.now, fmt.Sprintf(format, args...)}
	}
}

func (c *checker) incident(l store.Lane) { c.incidents[l]++ }

// taken notes that a lane has a new owner.
func (c *checker) taken(store.Lane) { c.w.cover.TakeOvers++ }

// accept is the broker's log: called once per copy that it takes.
func (c *checker) accept(s *session, m *msg, got postrider.Message) {
	c.w.note("accept", s.n.index, uint64(s.id))
	if c.w.traceOn {
		c.w.notef(s.n.index, "sink takes %s v%d of %s (boot %s)", got.ID, got.Version, got.Key, s.boot)
	}
	switch {
	case m == nil:
		c.fail("P", "message %s was never written", got.ID)
		return
	case !m.tx.committed:
		c.fail("P", "message %s arrived, its transaction is not committed", m.id)
		return
	case c.w.now < m.due:
		c.fail("O", "message %s arrived at %v, it is not due before %v", m.id, c.w.now, m.due)
		return
	}
	m.copies++
	if m.copies > 1 {
		c.dups[s.lane]++
	} else if m.discarded > 0 && s.started > m.discarded {
		c.fail("Q", "message %s was discarded at %v and sent at %v", m.id, m.discarded, s.started)
	}
	c.order(m)
}

// order is the no-skip rule: a version is at most one above the highest so far,
// where what policy or a person took out of the key counts as delivered.
func (c *checker) order(m *msg) {
	if m.version == 0 {
		return
	}
	top := c.highest[m.key]
	if m.version > top+1 {
		top = c.skipExcused(m.key, top)
	}
	if m.version > top+1 {
		c.fail("O", "key k%d: version %d arrived after version %d", m.key, m.version, top)
		return
	}
	c.highest[m.key] = max(top, m.version)
}

func (c *checker) skipExcused(key int, top int64) int64 {
	for found := true; found; {
		found = false
		for _, m := range c.msgs {
			if m.key == key && m.version == top+1 && m.excused && m.tx.committed {
				top, found = top+1, true
				break
			}
		}
	}
	return top
}

// sending checks what a core starts to send: only under a lease that the
// database still counts, and never more than the window beyond what is settled.
func (c *checker) sending(n *node, a core.Deliver) {
	if owner := c.w.db.Held()[a.Lane]; owner != n.boot && !c.w.mutant.shared() {
		c.fail("Z", "node %d (%s) sends in lane %d, which is held by %q", n.index, n.boot, a.Lane, owner)
	}
	sent := n.sent[a.Lane]
	if sent == nil {
		sent = map[string]bool{}
		n.sent[a.Lane] = sent
	}
	for _, m := range a.Msgs {
		sent[m.ID] = true
	}
	pending := map[string]bool{}
	for _, id := range c.w.db.PendingIDs(a.Lane) {
		pending[id] = true
	}
	for id := range sent {
		if !pending[id] {
			delete(sent, id)
		}
	}
	if len(sent) > c.w.plan.Window {
		c.fail("W", "node %d has %d unsettled messages in lane %d, the window is %d", n.index, len(sent), a.Lane, c.w.plan.Window)
	}
}

// settled looks at a settlement that the database has carried out.
func (c *checker) settled(sts []store.Settlement, lost []store.Lane, err error) {
	if err != nil {
		return
	}
	c.w.cover.Settles++
	for _, st := range sts {
		if slices.Contains(lost, st.Lane) {
			c.w.cover.Fenced++
			continue
		}
		for _, p := range st.Park {
			c.parked(p)
		}
	}
	c.actsDone()
	c.books()
}

func (c *checker) parked(p store.Park) {
	m := c.msgs[p.Message.ID]
	if m == nil {
		c.fail("P", "message %s is parked and was never written", p.Message.ID)
		return
	}
	if p.State != store.Dead {
		return
	}
	c.w.cover.Dead++
	if m.failures+m.unknowns < c.w.plan.MaxAttempts && m.rejections == 0 {
		c.fail("X", "message %s is dead (%s) after %d failures and %d unknown answers, %d attempts were allowed",
			m.id, p.Class, m.failures, m.unknowns, c.w.plan.MaxAttempts)
	}
	if p.Class == broker.ClassRejected.String() && m.rejections == 0 {
		c.fail("X", "message %s is dead as rejected, the sink never rejected it", m.id)
	}
}

// givenUp notes that a core has made a message dead under the policy skip: the
// key goes on at once, without waiting until that is settled.
func (c *checker) givenUp(f core.RecordParked) {
	if m := c.msgs[f.ID]; m != nil && f.State == store.Dead && c.w.plan.Skip {
		m.excused = true
	}
}

// books is conservation, from two sides that are kept apart.
func (c *checker) books() {
	for _, b := range c.w.db.Books() {
		if !b.Balanced() {
			c.fail("Q", "the books of lane %d do not balance: %+v", b.Lane, b)
		}
	}
}

// act is a person: retries or discards the record at a rank of the parked ones.
func (c *checker) act(rank int) {
	recs, err := c.w.db.Parked(c.w.ctx, store.ParkedQuery{})
	if err != nil || len(recs) == 0 {
		return
	}
	r := recs[rank%len(recs)]
	kind := store.ActRetry
	if c.w.chance(1, 2) {
		kind = store.ActDiscard
	}
	id, err := c.w.db.Request(c.w.ctx, store.Act{Kind: kind, Seq: r.Seq, Actor: "sim", Reason: "sim"})
	if err != nil {
		c.fail("S", "act on record %d: %v", r.Seq, err)
		return
	}
	c.w.cover.Acts++
	c.acts[id] = c.msgs[r.Message.ID]
	if kind == store.ActRetry {
		c.acts[id].due = 0 // a person who sends it again does not wait for its time
		c.acts[id] = nil
	}
	c.actsDone()
}

func (c *checker) actsDone() {
	for id, m := range c.acts {
		states, err := c.w.db.Acts(c.w.ctx, id)
		if err != nil || len(states) != 1 || !states[0].Done {
			continue
		}
		delete(c.acts, id)
		if m != nil && states[0].Result == "done" {
			m.discarded, m.excused = c.w.now, true
		}
	}
}

// quiet reports whether nothing is left that could move on.
func (c *checker) quiet() bool { return c.stuck() == "" && len(c.acts) == 0 }

// stuck names a message that should have moved on, "" if there is none.
func (c *checker) stuck() string {
	for l := range c.w.plan.Lanes {
		if ids := c.w.db.PendingIDs(store.Lane(l)); len(ids) > 0 {
			return fmt.Sprintf("lane %d has %d unsettled messages, the first is %s", l, len(ids), ids[0])
		}
	}
	recs, err := c.w.db.Parked(c.w.ctx, store.ParkedQuery{Limit: 1 << 20})
	if err != nil {
		return err.Error()
	}
	head := map[string]int64{} // by key: the number of the dead record that blocks it
	for _, r := range recs {
		if _, ok := head[r.Message.Key]; !ok && r.State == store.Dead && r.Captures {
			head[r.Message.Key] = r.Seq
		}
	}
	for _, r := range recs {
		seq, blocked := head[r.Message.Key]
		switch {
		case r.State == store.Dead:
		case blocked && (r.State == store.Scheduled || r.Seq > seq):
		default:
			return fmt.Sprintf("message %s of key %q is still parked as %s", r.Message.ID, r.Message.Key, r.State)
		}
	}
	return ""
}

// atEnd checks what can only be said when everything has come to rest.
func (c *checker) atEnd() {
	c.books()
	if why := c.stuck(); why != "" {
		c.fail("S", "%v after the faults ended: %s", c.w.now-faultsEnd, why)
	}
	if len(c.acts) > 0 {
		c.fail("S", "%d acts were never executed", len(c.acts))
	}
	c.lost()
	for l, n := range c.dups {
		if most := c.incidents[l] * (c.w.plan.Window + c.w.plan.Page); n > most {
			c.fail("D", "lane %d has %d duplicates, its %d incidents allow %d", l, n, c.incidents[l], most)
		}
	}
}

func (c *checker) lost() {
	recs, err := c.w.db.Parked(c.w.ctx, store.ParkedQuery{Limit: 1 << 20})
	if err != nil {
		c.fail("L", "parked records cannot be listed: %v", err)
		return
	}
	parked := map[string]bool{}
	for _, r := range recs {
		parked[r.Message.ID] = true
	}
	for _, r := range c.w.db.Committed() {
		c.w.cover.Messages++
		m := c.msgs[r.Message.ID]
		if m.copies == 0 && m.discarded == 0 && !parked[m.id] {
			c.fail("L", "message %s (record %d, key k%d version %d) was neither taken by the sink nor parked", m.id, r.Seq, m.key, m.version)
		}
	}
}

// incidents counts a fault of the node against every lane it holds.
func (n *node) incidents() {
	for l, owner := range n.w.db.Held() {
		if owner == n.boot {
			n.w.check.incident(store.Lane(l))
		}
	}
}

// unsettled reports whether the sink took something that is not settled yet.
func (n *node) unsettled() bool {
	for l, sent := range n.sent {
		for _, id := range n.w.db.PendingIDs(l) {
			if m := n.w.check.msgs[id]; sent[id] && m != nil && m.copies > 0 {
				return true
			}
		}
	}
	return false
}

// tookOver reports whether somebody else holds a lane that this boot sent in.
func (n *node) tookOver() bool {
	for l, owner := range n.w.db.Held() {
		if owner != n.boot && owner != "" && n.sent[store.Lane(l)] != nil {
			return true
		}
	}
	return false
}
