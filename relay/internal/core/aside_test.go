package core

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// stage is a store of a few lanes and a sink around an engine: it answers
// everything, hands out each batch from its time on, and parks.
type stage struct {
	*rig
	began   time.Duration
	waiting map[store.Lane][]staged
	next    map[store.Lane]int            // of waiting, behind the newest read
	settled map[store.Lane]store.Position // nil: nothing
	parked  map[int64]*stagedPark
	verdict func(m *postrider.Message, together int) error
	acked   map[string]time.Duration // since the start
	calls   int
	parks   int
}

type staged struct {
	at   time.Duration
	b    store.Batch
	seen time.Duration // when it was read first
}

type stagedPark struct {
	store.Park
	lane store.Lane
	due  time.Duration
}

func newStage(t *testing.T, cfg port.Config, lanes int, verdict func(*postrider.Message, int) error) *stage {
	t.Helper()
	s := &stage{rig: newRig(t, cfg), waiting: map[store.Lane][]staged{}, next: map[store.Lane]int{}, settled: map[store.Lane]store.Position{}, parked: map[int64]*stagedPark{}, verdict: verdict, acked: map[string]time.Duration{}}
	s.lead(lanes)
	s.began = s.now
	return s
}

// comes makes messages of the keys readable in a lane after a while, and returns their ids.
func (s *stage) comes(after time.Duration, lane store.Lane, keys ...string) (ids []string) {
	b := s.batch(lane, fmt.Sprint("p", s.seq+1), keys...)
	s.waiting[lane] = append(s.waiting[lane], staged{at: s.began + after, b: b})
	for _, m := range b.Messages {
		ids = append(ids, m.ID)
	}
	return ids
}

// until runs for a time at most, and reports whether it was enough.
func (s *stage) until(limit time.Duration, enough func() bool) bool {
	s.t.Helper()
	for end := s.now + limit; s.now < end; {
		if enough() {
			return true
		}
		s.facts = s.facts[:0]
		s.pass(20 * time.Millisecond)
		s.answer()
	}
	return enough()
}

func (s *stage) answer() {
	s.acts = slices.DeleteFunc(s.acts, func(a port.Action) bool { _, timer := a.(port.Timer); return timer })
	for {
		if rd, ok := maybe[port.Read](s.rig); ok {
			s.step(port.ReadDone{ID: rd.ID, Batches: s.find(rd)})
		} else if d, ok := maybe[port.Deliver](s.rig); ok {
			s.calls++
			if testing.Verbose() {
				s.t.Logf("%v lane %d deliver %v", s.now-s.began, d.Lane, ids(d))
			}
			errs := make([]error, len(d.Msgs))
			for i := range d.Msgs {
				if errs[i] = s.verdict(&d.Msgs[i], len(d.Msgs)); errs[i] == nil {
					s.acked[d.Msgs[i].ID] = s.now - s.began
				}
			}
			s.step(port.Delivered{ID: d.ID, Errs: errs})
		} else if st, ok := maybe[port.Settle](s.rig); ok {
			if testing.Verbose() {
				for _, x := range st.Settlements {
					s.t.Logf("%v settle lane %d pos %s park %s unpark %v", s.now-s.began, x.Lane, x.Position, drawn(x.Park), x.Unpark)
				}
			}
			s.record(st)
			s.step(port.Settled{ID: st.ID})
		} else if w, ok := maybe[port.Wait](s.rig); ok {
			s.step(port.Woke{ID: w.ID})
			return
		} else {
			return
		}
	}
}

func (s *stage) find(rd port.Read) (out []store.Batch) {
	for _, r := range rd.Reads {
		b := store.Batch{Lane: r.Lane, Position: r.After}
		if r.Parked {
			b = s.due(r.Lane)
			if n := r.MaxRecords; len(b.Messages) > n {
				b.Messages, b.Meta, b.More = b.Messages[:n], b.Meta[:n], true
			}
		} else if next := s.behind(r); next != nil && next.at <= s.now {
			if next.seen == 0 {
				next.seen = s.now
			}
			b = next.b
			b.Meta = slices.Clone(b.Meta)
			for i := range b.Meta {
				b.Meta[i].DueIn = max(b.Meta[i].DueIn-(s.now-next.seen), 0)
			}
		}
		out = append(out, b)
	}
	return out
}

// behind is what a read of the log finds next, nil: nothing yet.
func (s *stage) behind(r store.LaneRead) *staged {
	all, after := s.waiting[r.Lane], r.After
	if after == nil {
		after = s.settled[r.Lane]
	}
	if n := s.next[r.Lane]; n == 0 || !bytes.Equal(all[n-1].b.Position, after) {
		s.next[r.Lane] = 1 + slices.IndexFunc(all, func(x staged) bool { return bytes.Equal(x.b.Position, after) })
	}
	n := s.next[r.Lane]
	if n == len(all) || all[n].at > s.now {
		return nil
	}
	s.next[r.Lane]++
	return &all[n]
}

// due is a parked read: what captures comes when its time has come, and whoever
// waits behind it after it.
func (s *stage) due(lane store.Lane) store.Batch {
	b := store.Batch{Lane: lane}
	var seqs []int64
	for seq, p := range s.parked {
		if p.lane == lane {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	shut := map[string]bool{}
	for _, seq := range seqs {
		p := s.parked[seq]
		b.Parked.Records++
		if p.Captures && !slices.Contains(b.Parked.Captured, p.Message.Key) {
			b.Parked.Captured = append(b.Parked.Captured, p.Message.Key)
		}
		switch {
		case shut[p.Message.Key]:
		case p.State == store.Dead, p.due > s.now:
			shut[p.Message.Key] = true
			if wait := p.due - s.now; p.State != store.Dead && (!b.Parked.HasDue || wait < b.Parked.NextDue) {
				b.Parked.HasDue, b.Parked.NextDue = true, wait
			}
		default:
			b.Messages = append(b.Messages, p.Message)
			b.Meta = append(b.Meta, store.Meta{Seq: seq, State: p.State, Attempts: p.Attempts})
		}
	}
	return b
}

func (s *stage) record(st port.Settle) {
	for _, l := range st.Settlements {
		if l.Position != nil {
			s.settled[l.Lane] = l.Position
		}
		for _, seq := range l.Unpark {
			delete(s.parked, seq)
		}
		for _, p := range l.Park {
			s.parks++
			s.parked[p.Seq] = &stagedPark{p, l.Lane, s.now + p.DueIn}
		}
	}
}

// dead returns the ids that are dead letters.
func (s *stage) dead() (ids []string) {
	for _, p := range s.parked {
		if p.State == store.Dead {
			ids = append(ids, p.Message.ID)
		}
	}
	return ids
}

func (s *stage) attempts() (n int) {
	for _, p := range s.parked {
		n += p.Attempts
	}
	return n
}

var errHTTP500 = errors.New("test: answer 500")

// A message that its destination always answers with a failure that looks like an
// outage holds up nobody else: neither in its lane nor in others, whatever the
// destination's name, and however few the others are.
//
// Promises: S
func TestAMessageThatLooksLikeAnOutageHoldsNobodyUp(t *testing.T) {
	for name, c := range map[string]struct {
		destination string
		lane        store.Lane // of the others
		spoils      bool       // what is sent together with it fails too
	}{
		"a destination, the same lane":     {"hook", 0, false},
		"a destination, another lane":      {"hook", 1, false},
		"the sink, the same lane":          {"", 0, false},
		"the sink, another lane":           {"", 1, false},
		"the sink, a call fails as one":    {"", 0, true},
		"a destination, all fails as one":  {"hook", 0, true},
		"the message's topic, other lanes": {"orders", 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			guilty := ""
			var s *stage
			s = newStage(t, port.Config{Retry: port.Backoff{MaxAttempts: 3}}, 2, func(m *postrider.Message, together int) error {
				if m.ID == guilty || c.spoils && together > 1 && s.acked[guilty] == 0 {
					return broker.Outage(errHTTP500, "HTTP_500", c.destination)
				}
				return nil
			})
			guilty = s.comes(0, 0, "a")[0]
			if s.until(40*time.Second, func() bool { return len(s.dead()) > 0 }) || s.attempts() > 0 {
				t.Fatalf("%d attempts, dead: %v, with no other message", s.attempts(), s.dead())
			}
			from := s.now - s.began
			others := s.comes(from, c.lane, "b", "c")
			if !s.until(time.Minute, func() bool { return s.acked[others[0]] > 0 && s.acked[others[1]] > 0 }) {
				t.Fatalf("after a minute %v of %v are delivered", s.acked, others)
			}
			for i := range 600 { // traffic shows that the destination works
				s.comes(from+time.Duration(i)*time.Second, c.lane, "d")
			}
			if !s.until(10*time.Minute, func() bool { return len(s.dead()) > 0 }) {
				t.Fatalf("after ten minutes among others the message is no dead letter: %d attempts", s.attempts())
			}
			if dead := s.dead(); len(dead) != 1 || dead[0] != guilty {
				t.Errorf("dead: %v", dead)
			}
		})
	}
}

// A lane that another relay is due to get reads on behind such a message. The
// hand-over follows once the message has stepped aside.
//
// Promises: S
func TestAHandOverDoesNotWaitForAMessageThatLooksLikeAnOutage(t *testing.T) {
	for _, destination := range []string{"", "hook"} {
		t.Run(destination, func(t *testing.T) {
			guilty := ""
			s := newStage(t, port.Config{}, 2, func(m *postrider.Message, _ int) error {
				if m.ID == guilty {
					return broker.Outage(errHTTP500, "HTTP_500", destination)
				}
				return nil
			})
			batch := s.comes(0, 1, "a", "b")
			guilty = batch[1]
			if !s.until(time.Second, func() bool { return s.acked[batch[0]] > 0 }) {
				t.Fatal("the first message is not delivered")
			}
			s.others = 1
			s.until(40*time.Second, func() bool { return false })
			behind := s.comes(s.now-s.began, 1, "c")[0]
			if !s.until(time.Minute, func() bool { return s.acked[behind] > 0 && len(s.e.held) == 1 }) {
				t.Errorf("after a minute the message behind was delivered at %v, and %d lanes are held", s.acked[behind], len(s.e.held))
			}
		})
	}
}

// A lane that another relay is due to get does not keep the messages behind its first batch, of which
// a part is done and the rest waits for a destination that many other lanes try in turn.
//
// Promises: S
func TestAHandOverDoesNotWaitForADestinationThatIsDown(t *testing.T) {
	const lanes = 64
	begun := ""
	s := newStage(t, port.Config{}, lanes, func(m *postrider.Message, together int) error {
		if m.ID == begun {
			return nil
		}
		return down(m, together)
	})
	last := store.Lane(lanes - 1)
	for lane := range last {
		s.comes(20*time.Millisecond, lane, "a@down")
	}
	begun = s.comes(0, last, "a@down", "b@down", "c@down")[0]
	s.e.cfg.MaxLanes = lanes - 1
	s.until(20*time.Second, func() bool { return false })
	if s.acked[begun] == 0 {
		t.Fatal("the batch is not begun")
	}
	rare := s.comes(s.now-s.began, last, "x@other")[0]
	if !s.until(time.Minute, func() bool { return s.acked[rare] > 0 || s.e.lanes[last] == nil }) {
		t.Error("after a minute the lane is neither handed over nor read")
	}
}

// An outage of everybody sets nothing aside and uses up no attempt, however long it
// lasts and however much there is, and everything is sent when it ends.
//
// Promises: S
func TestAnOutageSetsNothingAside(t *testing.T) {
	for _, destination := range []string{"", "orders", "hook"} {
		t.Run(destination, func(t *testing.T) {
			down := true
			s := newStage(t, port.Config{}, 4, func(*postrider.Message, int) error {
				if down {
					return broker.Outage(errHTTP500, "down", destination)
				}
				return nil
			})
			var all []string
			for lane := range store.Lane(4) {
				for i := range 50 {
					all = append(all, s.comes(time.Duration(i)*time.Second, lane, fmt.Sprint("k", i), fmt.Sprint("k", i), "same")...)
				}
			}
			s.until(30*time.Minute, func() bool { return false })
			if s.parks > 0 || s.calls > 500 {
				t.Errorf("%d messages set aside, %d calls in half an hour", s.parks, s.calls)
			}
			down = false
			if !s.until(time.Minute, func() bool { return len(s.acked) == len(all) }) {
				t.Errorf("%d of %d messages are delivered a minute after the outage", len(s.acked), len(all))
			}
			wantEqual(t, "parked", s.parks, 0)
		})
	}
}

// Parked records of a lane do not wait for a message in front of them that looks
// like an outage, and an outage of everybody sets aside a few at the most for them.
//
// Promises: S
func TestWhatIsDueDoesNotWaitForAnOutage(t *testing.T) {
	const lanes = 20
	down := true
	s := newStage(t, port.Config{}, lanes, func(m *postrider.Message, _ int) error {
		if down || m.Key == "a" {
			return broker.Outage(errHTTP500, "down", "")
		}
		return nil
	})
	for lane := range store.Lane(lanes) {
		b := s.comes(0, lane, "b")
		s.comes(0, lane, "a", "a", "a")
		_ = b
	}
	s.until(time.Hour, func() bool { return false })
	if s.attempts() > 0 || s.parks > 20*asideMost {
		t.Errorf("%d attempts, %d parks in an outage of an hour", s.attempts(), s.parks)
	}
	down = false
	if !s.until(time.Minute, func() bool { return len(s.acked) == lanes }) {
		t.Errorf("%d of %d messages are delivered a minute after the outage", len(s.acked), lanes)
	}
}

// A lane at its cap reads on while its parked messages are all that it may send, also
// when one of them waits behind the outage that the others look like: its destination
// has acknowledged something since it was sent, and is out since.
//
// Promises: S
func TestALaneFullOfMessagesThatLookLikeAnOutageReadsOn(t *testing.T) {
	bad := map[string]error{}
	s := newStage(t, port.Config{ParkedKeys: 2, Retry: port.Backoff{MaxAttempts: 3}}, 1, func(m *postrider.Message, _ int) error { return bad[m.ID] })
	first := s.comes(0, 0, "a", "b", "", "c", "d@other")
	bad[first[0]], bad[first[1]] = broker.Outage(errHTTP500, "HTTP_500", "orders"), broker.Outage(errHTTP500, "HTTP_500", "orders")
	bad[first[2]] = unknown
	for i := range 600 { // traffic shows that the destination works
		s.comes(time.Duration(4+i)*time.Second, 0, "c")
	}
	if !s.until(10*time.Minute, func() bool { return len(s.dead()) == 3 }) {
		t.Errorf("after ten minutes %d messages are delivered, and dead are %v, want three", len(s.acked), s.dead())
	}
}

// The heads of captured keys try a destination that is down. A due message without a key
// has its turn too, also where a read brings one record.
//
// Promises: S
func TestAMessageWithoutAKeyTriesADestinationThatIsDown(t *testing.T) {
	bad := map[string]error{}
	s := newStage(t, port.Config{OutageMax: 2 * time.Second, Sink: broker.Info{MaxBatch: 1}}, 1, func(m *postrider.Message, _ int) error { return bad[m.ID] })
	var keys []string
	for i := range 16 {
		keys = append(keys, fmt.Sprint("k", i))
	}
	for _, id := range s.comes(0, 0, keys...) {
		bad[id] = broker.Outage(errHTTP500, "HTTP_500", "orders")
	}
	var late []string
	for i := range 240 { // what works elsewhere lets what waits for "orders" step aside
		s.comes(time.Duration(i)*time.Second, 0, "x@other")
		if i == 120 {
			late = s.comes(2*time.Minute, 0, "")
		}
	}
	if !s.until(3*time.Minute, func() bool { return s.acked[late[0]] > 0 }) {
		t.Error("the message without a key was not delivered within a minute")
	}
}

// down answers that the topic "down" is unavailable.
func down(m *postrider.Message, _ int) error {
	if m.Topic == "down" {
		return broker.Outage(errTest, "down", "down")
	}
	return nil
}

// Rare messages of a destination that works do not wait behind one that is down, however
// many lanes there are.
// Promises: S
func TestRareMessagesDoNotWaitForAnotherDestination(t *testing.T) {
	const lanes = 64
	s := newStage(t, port.Config{}, lanes, down)
	for lane := range store.Lane(lanes) {
		s.comes(0, lane, "a@down", "b@down", "c@down", "d@down", "e@down", "f@down", "g@down", "h@down", "i@down")
	}
	s.until(10*time.Minute, func() bool { return false })
	rare := s.comes(s.now-s.began, s.e.probed, "x@other")[0] // 63 other lanes probe before this one
	if !s.until(time.Minute, func() bool { return s.acked[rare] > 0 }) {
		t.Errorf("a message of another destination is not sent within a minute")
	}
}

// Due messages of a destination that works do not wait in their lane for one that is down,
// whatever that lane has parked for the latter.
//
// Promises: S
func TestWhatIsDueDoesNotWaitForAnotherDestination(t *testing.T) {
	const lanes = 4
	s := newStage(t, port.Config{}, lanes, down)
	var due []string
	for lane := range store.Lane(lanes) {
		due = append(due, s.comes(0, lane, "x@other")[0])
		s.waiting[lane][0].b.Meta[0].DueIn = 5 * time.Minute
		var many []string
		for i := range 50 {
			many = append(many, fmt.Sprintf("k%d@down", i))
		}
		s.comes(5*time.Second, lane, many...)
	}
	if !s.until(6*time.Minute, func() bool { return s.acked[due[0]] > 0 && len(s.acked) == lanes }) {
		t.Errorf("due since a minute, %d of %d sent: their lanes wait for another destination", len(s.acked), lanes)
	}
}

// A lane whose parked records are due again and again sends singly all the same what an
// outage answers together: what the first messages were answered is not forgotten when they
// make way.
//
// Promises: S
func TestWhatIsDueDoesNotKeepALaneFromSendingSingly(t *testing.T) {
	guilty := ""
	s := newStage(t, port.Config{Retry: port.Backoff{Delays: []time.Duration{time.Second}, MaxAttempts: 1000}}, 1, func(m *postrider.Message, together int) error {
		switch {
		case m.Topic == "fails":
			return failed
		case m.ID == guilty || together > 1:
			return broker.Outage(errHTTP500, "HTTP_500", "orders")
		}
		return nil
	})
	s.comes(0, 0, "x@fails")
	batch := s.comes(5*time.Second, 0, "a", "b", "c")
	guilty = batch[0]
	if !s.until(3*time.Minute, func() bool { return s.acked[batch[1]] > 0 && s.acked[batch[2]] > 0 }) {
		t.Errorf("after three minutes %v of %v are delivered", s.acked, batch)
	}
}
