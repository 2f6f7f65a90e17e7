package sim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// sink is a broker with the prefix property: every Deliver is a session.
type sink struct {
	w      *world
	prefix bool
}

// session is one Deliver call. Its messages reach the broker one by one in
// virtual time, so that anything may happen between two of them.
type session struct {
	w       *world
	n       *node
	boot    string
	id      port.ID
	lane    store.Lane
	msgs    []postrider.Message
	errs    []error
	next    int
	broken  map[string]bool
	started time.Duration
	sent    map[string]int // of the lane, as of the call
	wire    int            // messages that arrive although the sender is paused or dead
	gone    bool           // answered, cancelled or cut
	orphan  bool           // the sender is dead
}

var (
	errLater  = errors.New("simulated: later")
	errFailed = errors.New("simulated: failed")
)

func (n *node) deliver(a port.Deliver) {
	w := n.w
	w.check.sending(n, a)
	s := &session{
		w: w, n: n, boot: n.boot, id: a.ID, lane: a.Lane, msgs: slices.Clone(a.Msgs),
		errs: make([]error, len(a.Msgs)), broken: map[string]bool{}, started: w.now, sent: n.sent[a.Lane],
	}
	for i := range s.msgs {
		if m := &s.msgs[i]; w.mutant.without != "" && m.Headers[w.mutant.without] != "" {
			m.Headers = maps.Clone(m.Headers)
			delete(m.Headers, w.mutant.without)
		}
	}
	n.sessions[a.ID], n.told.calls[a.ID] = s, sent{lane: a.Lane, size: len(a.Msgs)}
	w.note("deliver", n.index, uint64(len(a.Msgs)))
	if w.mutant.ackEarly {
		n.post(time.Millisecond, port.Delivered{ID: a.ID})
	}
	if a.Timeout > 0 {
		w.after(a.Timeout, s.cancel)
	}
	w.after(w.latency(), s.step)
}

// step brings the next message to the broker.
func (s *session) step() {
	w := s.w
	if s.gone {
		return
	}
	if !s.orphan && w.now < s.n.pausedUntil || s.orphan {
		if s.wire == 0 {
			if s.orphan {
				s.gone = true
				return
			}
			w.at(s.n.pausedUntil+time.Microsecond, s.step)
			return
		}
		s.wire--
	}
	if s.next >= len(s.msgs) {
		s.answer()
		return
	}
	if !s.orphan && w.hit(opSinkHang) {
		return // until the timeout
	}
	s.one(s.next)
	s.next++
	gap := time.Duration(w.rng.Int64N(int64(2 * time.Millisecond)))
	if s.orphan {
		gap = time.Duration(w.rng.Int64N(int64(leaseTTL)))
	}
	w.after(gap, s.step)
}

// one is what the broker makes of message i.
func (s *session) one(i int) {
	w, m := s.w, s.msgs[i]
	known := w.check.msgs[m.ID]
	if m.Key != "" && s.broken[m.Key] && w.sink.prefix {
		s.errs[i] = broker.Failed(broker.ErrNotTried, "", "")
		return
	}
	s.errs[i] = s.verdict(known, m)
	if s.errs[i] == nil {
		w.check.accept(s, known, m)
		if known != nil && w.hit(opAckLost) {
			w.cover.LostAcks++
			w.check.incident(s.lane)
			known.unknowns++
			s.errs[i] = broker.Unknown(errSlow, "", "")
		}
	}
	if s.errs[i] != nil {
		s.broken[m.Key] = true
	}
}

// verdict decides the fate of a message; nil: the broker takes it.
func (s *session) verdict(known *msg, m postrider.Message) error {
	w := s.w
	if known == nil {
		return nil
	}
	topic, name := w.plan.dest(known.key), w.plan.destName(known.key)
	if o, down := w.holds(opOutage, topic); down {
		w.cover.Outages++
		if known.kind == msgDown { // nobody can tell this answer from its own
			known.impostures++
		}
		return broker.Outage(errStore, "down", destination(o, name))
	}
	if o, slow := w.holds(opThrottle, topic); slow {
		return broker.Throttled(errLater, "slow", destination(o, name), 20*time.Millisecond)
	}
	if _, silent := w.holds(opSilent, topic); silent {
		w.cover.Silences++
		w.check.incident(s.lane)
		return broker.Unknown(errSlow, "silent", "")
	}
	if _, refuses := w.holds(opRefuse, topic); refuses {
		known.rejections++
		return broker.Rejected(errFailed, "refused", name)
	}
	switch {
	case known.kind == msgDeadly:
		s.kill(known)
		return broker.Unknown(errSlow, "eof", "")
	case known.kind == msgRejected:
		known.rejections++
		return broker.Rejected(errFailed, "invalid", name)
	case known.kind == msgHangup:
		known.unknowns++
		w.check.incident(s.lane)
		s.cut()
		return broker.Unknown(errSlow, "eof", "")
	case known.kind == msgDown:
		known.impostures++
		w.cover.Impostures++
		o := op{N: known.key%3 - 1} // of the whole sink, or of its topic
		return broker.Outage(errFailed, "500", destination(o, name))
	case known.kind == msgFailing && known.failures < 2, w.hit(opSinkFail):
		known.failures++
		return broker.Failed(errFailed, "nack", name)
	}
	return nil
}

// kill ends the node, unless it has ended already.
func (s *session) kill(known *msg) {
	if s.orphan || s.gone || s.n.boot != s.boot {
		return
	}
	known.deaths++
	s.w.cover.Deaths++
	s.n.crash()
	s.w.after(time.Duration(s.w.rng.Int64N(int64(time.Second))), s.n.start)
}

func destination(o op, name string) string {
	if o.N < 0 {
		return ""
	}
	return name
}

// cut ends the connection after the current message: the rest is unknown and
// never arrives.
func (s *session) cut() {
	for j := s.next + 1; j < len(s.msgs); j++ {
		s.errs[j] = broker.Unknown(broker.ErrNotTried, "eof", "")
	}
	s.next = len(s.msgs) - 1
}

// cancel ends the call for its caller: what has no answer is unknown, and the
// message that was on its way may still arrive, but none behind it.
func (s *session) cancel() {
	if s.gone || s.orphan {
		return
	}
	w := s.w
	if w.now < s.n.pausedUntil {
		w.at(s.n.pausedUntil+time.Microsecond, s.cancel)
		return
	}
	if s.next < len(s.msgs) {
		w.check.incident(s.lane)
		if m := s.msgs[s.next]; w.chance(1, 2) && !(s.broken[m.Key] && m.Key != "") {
			w.after(time.Duration(w.rng.Int64N(int64(2*leaseTTL))), func() { s.late(m) })
		}
	}
	for i := s.next; i < len(s.msgs); i++ {
		if known := w.check.msgs[s.msgs[i].ID]; known != nil {
			known.unknowns++
		}
		s.errs[i] = broker.Unknown(context.Canceled, "", "")
	}
	s.answer()
}

// late is a message that arrives after its session has ended.
func (s *session) late(m postrider.Message) {
	known := s.w.check.msgs[m.ID]
	if known != nil && (known.kind == msgGood || known.kind == msgScheduled) {
		s.w.cover.LateBytes++
		s.w.check.accept(s, known, m)
	}
}

func (s *session) answer() {
	s.gone = true
	if s.orphan || s.n.boot != s.boot {
		return
	}
	delete(s.n.sessions, s.id)
	if s.w.mutant.ackEarly {
		return
	}
	for i, err := range s.errs {
		c := broker.Classify(err)
		if errors.Is(err, broker.ErrNotTried) || err != nil && (c.Class == broker.ClassOutage || c.Class == broker.ClassThrottled) {
			s.sent[s.msgs[i].ID]--
		}
	}
	errs := s.w.mutant.delivered(s.errs)
	s.n.post(s.w.latency(), port.Delivered{ID: s.id, Errs: errs})
}

// detach leaves a session without its sender: some of it is on the wire.
func (s *session) detach() {
	s.orphan = true
	if s.gone {
		return
	}
	s.w.check.incident(s.lane)
	if s.wire = 0; s.w.chance(1, 2) {
		s.wire = 1 + s.w.rng.IntN(6)
	}
	delete(s.n.sessions, s.id)
}

func (n *node) inOrder() []*session {
	var all []*session
	for _, s := range n.sessions {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *session) int { return int(a.id) - int(b.id) })
	return all
}
