package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// violation is a broken promise, by its letter in docs/guarantees.md, or one of
// W (the window), Z (a send outside of a lease), X (dead without cause), F (a fact that is
// wrong or stays), R (a rush: more actions or reports than a relay may make).
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
	written   []*msg        // the same, in the order of their writing
	highest   map[int]int64 // by key
	dups      map[store.Lane]int
	incidents map[store.Lane]int
	acts      map[int64]open
	during    during
}

// open is a request that the lane's owner has not executed yet.
type open struct {
	m    *msg
	kind store.ActKind
	at   time.Duration
}

func (c *checker) init() {
	c.msgs = map[string]*msg{}
	c.highest = map[int]int64{}
	c.dups, c.incidents = map[store.Lane]int{}, map[store.Lane]int{}
	c.acts = map[int64]open{}
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
	case !m.tx.committed && !m.tx.flushed:
		c.fail("P", "message %s arrived, its transaction is not committed", m.id)
		return
	case c.w.latest < m.due:
		c.fail("O", "message %s arrived at %v, it is not due before %v", m.id, c.w.clock(), m.due)
		return
	}
	c.marks(s, m, got)
	m.copies++
	if m.copies > 1 {
		c.dups[s.lane]++
	} else if m.discarded > 0 && s.started > m.discarded {
		c.fail("Q", "message %s was discarded at %v and sent at %v", m.id, m.discarded, s.started)
	}
	c.order(m)
}

// order is the no-skip rule: a version is at most one above the highest so far,
// where what was announced as a gap or discarded by a person counts as
// delivered. So who applies versions one by one never waits for one in vain.
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
	for {
		m := c.version(key, top+1)
		if m == nil || !m.announced && m.discarded == 0 {
			return top
		}
		top++
	}
}

// version returns the committed message that has this version of a key.
func (c *checker) version(key int, version int64) *msg {
	for _, m := range c.msgs {
		if m.key == key && m.version == version && (m.tx.committed || m.tx.flushed) {
			return m
		}
	}
	return nil
}

// marks looks at the relay's headers of a copy: a gap is announced only when it
// is recorded, and what was given up comes back only by a person, with a mark.
func (c *checker) marks(s *session, m *msg, got postrider.Message) {
	if gap := got.Headers[envelope.Gap]; gap != "" {
		c.w.cover.Gaps++
		c.gap(m, gap)
	}
	replayed := got.Headers[envelope.Generation] != ""
	switch {
	case replayed && m.retried == 0:
		c.fail("O", "message %s has generation %s, nobody sent it again", m.id, got.Headers[envelope.Generation])
	case replayed:
		c.w.cover.Replays++
	case m.retried > 0 && s.started > m.retried, m.dead > 0 && s.started > m.dead:
		c.fail("O", "message %s was dead at %v, sent again by a person at %v and sent at %v without a mark", m.id, m.dead, m.retried, s.started)
	}
}

func (c *checker) gap(m *msg, value string) {
	gaps, err := envelope.ParseGap(value)
	if err != nil || !c.w.plan.skips(m.key) {
		c.fail("O", "message %s announces the gap %q, the policy skip is %v: %v", m.id, value, c.w.plan.skips(m.key), err)
		return
	}
	for _, g := range gaps {
		for v := g.First; v <= g.Last; v++ {
			missing := c.version(m.key, v)
			if missing == nil || missing.dead == 0 || v >= m.version {
				c.fail("O", "message %s of version %d announces that version %d of key k%d is missing, which is not recorded as dead",
					m.id, m.version, v, m.key)
				return
			}
			missing.announced = true
		}
	}
}

// sending checks what a core starts to send: only under a lease that the
// database still counts, and never more than the window beyond what is settled. What the
// broker refused for certain does not count: nothing of it can be sent twice.
func (c *checker) sending(n *node, a port.Deliver) {
	if owner := c.w.db.Held()[a.Lane]; owner != n.boot && !c.w.mutant.shared() && !c.w.stepped() {
		c.fail("Z", "node %d (%s) sends in lane %d, which is held by %q", n.index, n.boot, a.Lane, owner)
	}
	c.rate(n, len(a.Msgs))
	sent := n.sent[a.Lane]
	if sent == nil {
		sent = map[string]int{}
		n.sent[a.Lane] = sent
	}
	for _, m := range a.Msgs {
		sent[m.ID]++
		if c.w.db.Paused(a.Lane, m.Key) {
			c.fail("C", "node %d sends message %s of key %q, which a person has paused", n.index, m.ID, m.Key)
		}
	}
	open := 0
	for _, id := range c.w.db.PendingIDs(a.Lane) {
		if sent[id] > 0 {
			open++
		}
	}
	if open > c.w.plan.Window {
		c.fail("W", "node %d has %d unsettled messages in lane %d, the window is %d", n.index, open, a.Lane, c.w.plan.Window)
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
	if m.dead == 0 {
		m.dead = c.w.now
	}
	c.taint(m)
	if m.failures+m.unknowns+m.impostures/3+m.deaths < c.w.plan.MaxAttempts && m.rejections == 0 {
		c.fail("X", "message %s is dead (%s) after %d failures, %d unknown answers and %d outages of its own, %d attempts were allowed",
			m.id, p.Class, m.failures, m.unknowns, m.impostures, c.w.plan.MaxAttempts)
	}
	if p.Class == broker.ClassRejected.String() && m.rejections == 0 {
		c.fail("X", "message %s is dead as rejected, the sink never rejected it", m.id)
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
	recs, err := c.w.admin.Parked(c.w.ctx, ops.ParkedQuery{})
	if err != nil || len(recs) == 0 {
		return
	}
	r := recs[rank%len(recs)]
	kind := store.ActRetry
	if c.w.chance(1, 2) {
		kind = store.ActDiscard
	}
	id, err := c.w.admin.Request(c.w.ctx, store.Act{Kind: kind, Seq: r.Seq, Actor: "sim", Reason: "sim"})
	if err != nil {
		c.fail("S", "act on record %d: %v", r.Seq, err)
		return
	}
	c.w.cover.Acts++
	m := c.msgs[r.Message.ID]
	c.acts[id] = open{m, kind, c.w.now}
	if kind == store.ActRetry {
		m.due = 0 // a person who sends it again does not wait for its time
	}
	c.actsDone()
}

// hold is a person who pauses a key or a lane and resumes it later.
func (c *checker) hold(o op) {
	act := store.Act{Kind: store.ActPause, Actor: "sim", Reason: "sim"}
	if o.N < 0 {
		act.Lane = laneOfHold(o)
	} else {
		act.Key = keyName(o.N)
	}
	c.ask(act)
	act.Kind = store.ActResume
	c.w.after(o.Dur, func() { c.ask(act) })
}

func laneOfHold(o op) store.Lane { return store.Lane(-o.N - 1) }

func (c *checker) ask(act store.Act) {
	id, err := c.w.admin.Request(c.w.ctx, act)
	if err != nil {
		c.fail("S", "%s: %v", act.Kind, err)
		return
	}
	c.acts[id] = open{nil, act.Kind, c.w.now}
	c.actsDone()
}

func (c *checker) actsDone() {
	for id, a := range c.acts {
		states, err := c.w.admin.Acts(c.w.ctx, id)
		if err != nil || len(states) != 1 || !states[0].Done {
			continue
		}
		delete(c.acts, id)
		switch {
		case states[0].Result != "done":
		case a.kind == store.ActPause:
			c.w.cover.Holds++
		case a.kind == store.ActResume:
		case a.kind == store.ActDiscard:
			a.m.discarded = c.w.now
		default:
			a.m.retried = c.w.now
		}
	}
}

// quiet reports whether nothing is left that could move on.
func (c *checker) quiet() bool { return c.stuck() == "" && len(c.acts) == 0 }

// stuck names a message that should have moved on, or returns "".
func (c *checker) stuck() string {
	recs, err := c.w.admin.Parked(c.w.ctx, ops.ParkedQuery{Limit: 1 << 20})
	if err != nil {
		return err.Error()
	}
	head := map[string]int64{} // by key: the number of the record that blocks it
	held := map[store.Lane]int{}
	for _, r := range recs {
		if _, ok := head[r.Message.Key]; !ok && r.Captures && (r.State == store.Dead || c.unproven(r)) {
			head[r.Message.Key] = r.Seq
			held[r.Lane]++
		}
	}
	full := func(l store.Lane) bool { return c.w.plan.ParkedKeys > 0 && held[l] >= c.w.plan.ParkedKeys }
	for l := range c.w.plan.Lanes {
		if ids := c.w.db.PendingIDs(store.Lane(l)); len(ids) > 0 && !full(store.Lane(l)) {
			return fmt.Sprintf("lane %d has %d unsettled messages, the first is %s", l, len(ids), ids[0])
		}
	}
	for _, r := range recs {
		seq, blocked := head[r.Message.Key]
		switch {
		case r.State == store.Dead:
		case blocked && (r.State == store.Scheduled || r.Seq > seq):
		case full(r.Lane) && c.unproven(r):
		default:
			return fmt.Sprintf("message %s of key %q is still parked as %s", r.Message.ID, r.Message.Key, r.State)
		}
	}
	return ""
}

// unproven reports whether a record makes the broker hang up, or is held by a
// brake. In a lane at its cap it can stay so: nothing is sent there that could
// prove that the broker works otherwise.
func (c *checker) unproven(r ops.ParkedRecord) bool {
	if c.w.plan.ParkedKeys == 0 || r.State != store.Retry {
		return false
	}
	kind := c.msgs[r.Message.ID].kind
	return kind == msgHangup || kind == msgDown || kind == msgRejected && c.w.plan.Brake > 0
}

// atEnd checks what can only be said when everything has come to rest.
func (c *checker) atEnd() {
	c.books()
	if why := c.stuck(); why != "" {
		c.fail("S", "%v after the faults ended: %s", c.w.now-c.w.plan.faults(), why)
	}
	if len(c.acts) > 0 {
		c.fail("S", "%d acts were never executed", len(c.acts))
	}
	if why := c.restless(); why != "" && c.w.plan.rests() {
		c.fail("F", "%v after the faults ended: %s", c.w.now-c.w.plan.faults(), why)
	}
	c.lost()
	for l, n := range c.dups {
		if most := c.incidents[l] * (c.w.plan.Window + c.w.plan.Page); n > most {
			c.fail("D", "lane %d has %d duplicates, its %d incidents allow %d", l, n, c.incidents[l], most)
		}
	}
}

func (c *checker) lost() {
	recs, err := c.w.admin.Parked(c.w.ctx, ops.ParkedQuery{Limit: 1 << 20})
	if err != nil {
		c.fail("L", "parked records cannot be listed: %v", err)
		return
	}
	parked := map[string]bool{}
	for _, r := range recs {
		parked[r.Message.ID] = true
	}
	for l := range c.w.plan.Lanes { // behind a cap; stuck has looked whether that is so
		for _, id := range c.w.db.PendingIDs(store.Lane(l)) {
			parked[id] = true
		}
	}
	for _, m := range c.written {
		if !m.tx.committed {
			continue
		}
		c.w.cover.Messages++
		if m.copies == 0 && m.discarded == 0 && !parked[m.id] {
			c.fail("L", "message %s (key k%d version %d) was neither taken by the sink nor parked", m.id, m.key, m.version)
		}
	}
}

// incidents counts a fault of the node against every lane it holds, or held when
// its lease lapsed.
func (n *node) incidents() {
	for l, owner := range n.w.db.Held() {
		if owner == n.boot || n.sent[store.Lane(l)] != nil {
			n.w.check.incident(store.Lane(l))
		}
	}
}

// unsettled reports whether the sink took something that is not settled yet.
func (n *node) unsettled() bool {
	for l, sent := range n.sent {
		for _, id := range n.w.db.PendingIDs(l) {
			if m := n.w.check.msgs[id]; sent[id] > 0 && m != nil && m.copies > 0 {
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
