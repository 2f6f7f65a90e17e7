package core

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/mark"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

func captured(keys ...string) store.ParkedView {
	return store.ParkedView{Captured: keys, Records: len(keys)}
}

// parkedBatch is what a parked read finds.
func (r *rig) parkedBatch(v store.ParkedView, st store.State, attempts int, keys ...string) store.Batch {
	b := r.batch(0, "", keys...)
	b.Position, b.Parked = nil, v
	for i := range b.Meta {
		b.Meta[i].State, b.Meta[i].Attempts = st, attempts
	}
	return b
}

func TestMessagesOfACapturedKeyWait(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(1, captured("a")))
	r.read(r.batch(0, "p1", "a", "b", ""))
	wantEqual(t, "sent", fmt.Sprint(ids(r.deliver())), "[m2 m3]")
	s := r.settle(0)
	wantEqual(t, "parked", drawn(s.Park), "m1 waiting")
	wantEqual(t, "delivered", s.Delivered, 2)
}

func TestAKeyIsCapturedBeforeItsParkIsSettled(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	b := r.batch(0, "p1", "a", "b")
	b.More = true
	r.read(b)
	r.read(r.batch(0, "p2", "a", "b"))
	r.deliver(failed, nil)
	wantEqual(t, "sent", fmt.Sprint(ids(r.deliver())), "[m4]")
	wantEqual(t, "parked", drawn(r.settle(0).Park), "m1 retry captures #1, m3 waiting")
}

func TestDueRecordsAreDeliveredOnceThePipelineIsEmpty(t *testing.T) {
	r := newRig(t, port.Config{})
	v := captured("a")
	v.HasDue, v.NextDue = true, 300*time.Millisecond
	r.leadWith(lanes(1, v))
	r.read(r.batch(0, "p1", "b"))
	d := take[port.Deliver](r)
	r.pass(400 * time.Millisecond)
	none[port.Read](r) // due, but a delivery is out
	r.step(port.Delivered{ID: d.ID})
	s := take[port.Settle](r) // at once: the parked records wait for it
	none[port.Read](r)
	r.step(port.Settled{ID: s.ID})
	rd := take[port.Read](r)
	if !rd.Reads[0].Parked || rd.Reads[0].Epoch != 11 {
		t.Fatalf("read %+v, want a parked one under the new epoch", rd.Reads[0])
	}
	r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{r.parkedBatch(v, store.Retry, 2, "a")}})
	r.deliver()
	s = take[port.Settle](r)
	st := s.Settlements[0]
	wantEqual(t, "unparked", fmt.Sprint(st.Unpark), "[2]")
	wantEqual(t, "delivered", st.Delivered, 1)
	if st.Position != nil {
		t.Errorf("a parked settlement moved the position to %q", st.Position)
	}
	r.step(port.Settled{ID: s.ID})
	rd = r.parkedRead() // the view again, for what was behind it
	r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{r.parkedBatch(store.ParkedView{}, 0, 0)}})
	for {
		rd, ok := maybe[port.Read](r)
		if !ok {
			break
		}
		wantEqual(t, "parked", rd.Reads[0].Parked, false)
		r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{r.batch(0, "p2", "a")}})
	}
	if w, ok := maybe[port.Wait](r); ok {
		r.step(port.Woke{ID: w.ID})
		r.read(r.batch(0, "p2", "a"))
	}
	wantEqual(t, "the freed key flows", len(take[port.Deliver](r).Msgs), 1)
}

func TestAParkedRecordThatFailsAgainIsParkedLonger(t *testing.T) {
	due := captured("a", "b")
	due.HasDue = true
	for _, c := range []struct {
		name   string
		err    error
		parked string
	}{
		{"failed", failed, "m1 retry captures #4"},
		{"rejected", rejected, "m1 dead captures #4"},
		{"its destination is down", errOrdersOut, "m1 retry captures #3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, port.Config{})
			r.leadWith(lanes(1, due))
			r.read(r.parkedBatch(due, store.Retry, 3, "a", "a", "b"))
			r.deliver(c.err, errNotTried, nil)
			st := r.settle(0)
			wantEqual(t, "parked", drawn(st.Park), c.parked)
			wantEqual(t, "unparked", fmt.Sprint(st.Unpark), "[3]")
		})
	}
}

func TestANormalBatchGetsItsTurnBetweenParkedOnes(t *testing.T) {
	r := newRig(t, port.Config{})
	due := captured("a")
	due.HasDue = true
	r.leadWith(lanes(1, due))
	for turn := range 20 {
		rd := take[port.Read](r)
		if !rd.Reads[0].Parked {
			wantEqual(t, "turn of the first normal read", turn, parkedTurns)
			return
		}
		r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{r.parkedBatch(due, store.Waiting, 0, "a")}})
		r.deliver()
		r.step(port.Settled{ID: take[port.Settle](r).ID})
	}
	t.Fatal("parked records starve the lane")
}

// The pages of an order over many records come no faster than what they set aside
// is sent, and no act waits for ever: not for records that are due without an end,
// and not while nothing can be sent at all.
//
// Promises: G
func TestActsWaitAWhileForWhatIsDue(t *testing.T) {
	due := store.ParkedView{HasDue: true, Records: 9}
	act := store.Request{ID: 7, Act: store.Act{Kind: store.ActRetry, Seq: 99}}
	start := func() *rig {
		r := newRig(t, port.Config{})
		g := lanes(1, due)
		g.Requests = []store.Request{act}
		r.leadWith(g)
		return r
	}
	// turn sends one due record, and reports whether the act came instead.
	turn := func(r *rig, after store.ParkedView) bool {
		if s, ok := maybe[port.Settle](r); ok {
			wantEqual(t, "requests", fmt.Sprint(s.Settlements[0].Requests), "[7]")
			return true
		}
		rd := r.parkedRead()
		r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{r.parkedBatch(after, store.Retry, 0, "a")}})
		r.deliver()
		r.step(port.Settled{ID: take[port.Settle](r).ID})
		return false
	}
	r := start()
	n := 0
	for ; n < 100 && !turn(r, due); n++ {
	}
	wantEqual(t, "turns while something is due", n, actTurns)

	r = start()
	turn(r, store.ParkedView{})
	wantEqual(t, "the act when nothing is due any more", turn(r, due), true)

	r = newRig(t, port.Config{})
	g := lanes(1, due)
	g.Requests, g.Paused = []store.Request{act}, true
	r.leadWith(g)
	wantEqual(t, "the act while the pipe is paused", turn(r, due), true)

	r = newRig(t, port.Config{})
	r.leadWith(lanes(2, store.ParkedView{HasDue: true, NextDue: 500 * time.Millisecond}))
	r.read(r.batch(1, "p1", "b"))
	for range 60 {
		if d, ok := maybe[port.Deliver](r); ok {
			r.step(port.Delivered{ID: d.ID, Errs: []error{outage}})
		}
		if rd, ok := maybe[port.Read](r); ok {
			r.step(port.ReadDone{ID: rd.ID})
		}
		r.pass(10 * time.Millisecond)
	}
	r.now += 700 * time.Millisecond
	r.step(port.Tick{})
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: r.grant(act)})
	if rd, ok := maybe[port.Read](r); ok { // of what may show that the sink works: the act comes first
		r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{r.parkedBatch(due, store.Retry, 0, "a")}})
	}
	wantEqual(t, "the act while the sink is down", turn(r, due), true)

	r = start()
	r.step(port.ReadDone{ID: take[port.Read](r).ID, Batches: []store.Batch{{Parked: due}}})
	wantEqual(t, "the act when the read finds nothing", turn(r, due), true)
}

// Nobody counts further than the cap needs.
func TestParkedRecordsAreCountedAsFarAsTheCap(t *testing.T) {
	r := newRig(t, port.Config{ParkedKeys: 3})
	r.step(port.Start{})
	l := take[port.Lease](r)
	r.step(port.Leased{ID: l.ID, Grant: lanes(1, store.ParkedView{HasDue: true})})
	wantEqual(t, "lease", l.Req.CountParked, 3*16)
	wantEqual(t, "read", take[port.Read](r).Reads[0].CountParked, 3*16)
}

func TestActsOfPeopleAreExecutedOnceInASettlementOfTheirOwn(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(1, captured("a")))
	r.read(r.batch(0, "p1", "b"))
	d := take[port.Deliver](r)
	request := store.Request{ID: 7, Lane: 0, Act: store.Act{Kind: store.ActRetry, Seq: 99}}
	r.now += 700 * time.Millisecond
	r.step(port.Tick{})
	stale := r.grant(request)
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: stale})
	none[port.Settle](r)
	r.step(port.Delivered{ID: d.ID})
	s := take[port.Settle](r)
	wantEqual(t, "first the pipeline", len(s.Settlements[0].Requests), 0)
	r.step(port.Settled{ID: s.ID})
	s = take[port.Settle](r)
	wantEqual(t, "requests", fmt.Sprint(s.Settlements[0].Requests), "[7]")
	r.now += 700 * time.Millisecond
	r.step(port.Tick{})
	l := take[port.Lease](r)
	r.step(port.Settled{ID: s.ID})
	rd := take[port.Read](r)
	wantEqual(t, "then the view", rd.Reads[0].Parked, true)
	stale.Lanes[0].Epoch = 12
	r.step(port.Leased{ID: l.ID, Grant: stale}) // sent before the settlement was answered
	r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{r.parkedBatch(store.ParkedView{}, 0, 0)}})
	r.pass(200 * time.Millisecond)
	none[port.Settle](r)
}

// Promises: G
func TestAtTheCapOfParkedKeysTheLanePausesAndSaysSo(t *testing.T) {
	r := newRig(t, port.Config{ParkedKeys: 2})
	r.lead(1)
	b := r.batch(0, "p1", "a", "b")
	b.More = true
	r.read(b)
	r.step(port.ReadDone{ID: take[port.Read](r).ID})
	r.deliver(rejected, rejected)
	r.settle(0)
	if w, ok := maybe[port.Wait](r); ok {
		r.step(port.Woke{ID: w.ID})
	}
	none[port.Read](r)
	p := factsOf[port.LanePaused](r)
	if len(p) != 1 || !p[0].On || p[0].Keys != 2 {
		t.Fatalf("paused %+v", p)
	}
	r.now += 700 * time.Millisecond
	r.step(port.Tick{})
	request := store.Request{ID: 1, Act: store.Act{Kind: store.ActDiscard, Seq: 1}}
	l, _ := maybe[port.Lease](r)
	r.step(port.Leased{ID: l.ID, Grant: r.grant(request)})
	r.step(port.Settled{ID: take[port.Settle](r).ID})
	r.step(port.ReadDone{ID: take[port.Read](r).ID, Batches: []store.Batch{r.parkedBatch(captured("b"), 0, 0)}})
	wantEqual(t, "reads again", take[port.Read](r).Reads[0].Parked, false)
	if p = factsOf[port.LanePaused](r); len(p) != 2 || p[1].On {
		t.Errorf("paused %+v", p)
	}
}

// A lane below the cap again reads its log, though parked records of it are due at any time.
//
// Promises: S
func TestALaneBelowTheCapAgainReadsOn(t *testing.T) {
	r := newRig(t, port.Config{ParkedKeys: 2, Retry: port.Backoff{Delays: []time.Duration{time.Nanosecond}, Jitter: -1}})
	due := captured("a", "b")
	due.HasDue = true
	r.leadWith(lanes(1, due))
	sent := map[string]int{}
	for range 30 {
		r.pass(100 * time.Millisecond)
		if rd, ok := maybe[port.Read](r); ok {
			if !rd.Reads[0].Parked {
				if sent["a"] < 3 {
					t.Fatal("the lane is at the cap, and reads its log")
				}
				return
			}
			b := r.parkedBatch(due, store.Retry, 0, "a", "b")
			if sent["a"] >= 3 { // it was acknowledged
				due = captured("b")
				due.HasDue = true
				b = r.parkedBatch(due, store.Retry, 0, "b")
			}
			r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{b}})
		}
		if d, ok := maybe[port.Deliver](r); ok {
			errs := make([]error, len(d.Msgs))
			for i := range d.Msgs {
				if sent[d.Msgs[i].Key]++; d.Msgs[i].Key == "b" || sent["a"] < 3 {
					errs[i] = failed
				}
			}
			r.step(port.Delivered{ID: d.ID, Errs: errs})
		}
		if st, ok := maybe[port.Settle](r); ok {
			r.step(port.Settled{ID: st.ID})
		}
	}
	t.Fatalf("one key is parked, the cap is two, and the log is never read: %v", sent)
}

func TestAnUnknownParkedRecordFailsOnlyWhenOthersWork(t *testing.T) {
	r := newRig(t, port.Config{})
	due := captured("a")
	due.HasDue = true
	r.leadWith(lanes(1, due))
	r.read(r.parkedBatch(due, store.Retry, 3, "a"))
	r.deliver(unknown)
	r.pass(200 * time.Millisecond)
	r.deliver(unknown)
	st := r.settle(0)
	wantEqual(t, "the first time", drawn(st.Park), "m1 retry captures #3")
	if st.Park[0].DueIn <= 0 {
		t.Error("due at once: it would spin")
	}
}

func TestScheduledRecordsBehindAFailureOfTheirKeyWait(t *testing.T) {
	r := newRig(t, port.Config{})
	due := store.ParkedView{HasDue: true, Records: 2}
	r.leadWith(lanes(1, due))
	r.read(r.parkedBatch(due, store.Scheduled, 0, "a", "a"))
	r.deliver(failed, errNotTried)
	wantEqual(t, "parked", drawn(r.settle(0).Park), "m1 retry captures #1, m2 waiting")
}

func TestAPausedLaneComesToRestBehindAnUnknownMessage(t *testing.T) {
	r := newRig(t, port.Config{ParkedKeys: 1})
	r.lead(1)
	r.read(r.batch(0, "p1", "a", ""))
	r.deliver(rejected, unknown)
	r.step(port.Woke{ID: take[port.Wait](r).ID})
	for range 20 { // a few rounds together, then alone
		r.pass(500 * time.Millisecond)
		if d, ok := maybe[port.Deliver](r); ok {
			r.step(port.Delivered{ID: d.ID, Errs: []error{unknown}})
		}
		if s, ok := maybe[port.Settle](r); ok {
			wantEqual(t, "parked", drawn(s.Settlements[0].Park), "m1 dead captures #1, m2 retry")
			return
		}
	}
	t.Fatal("the dead letter is never recorded, and the lane reads nothing that could prove the other message guilty")
}

func TestAFewMessagesStepOutOfABrakesWay(t *testing.T) {
	r := newRig(t, port.Config{Brake: 1})
	r.lead(1)
	r.read(r.batch(0, "p1", "a", "b", "b"))
	r.deliver(rejected, rejected, errNotTried)
	for range 20 {
		r.pass(500 * time.Millisecond)
		if d, ok := maybe[port.Deliver](r); ok {
			wantEqual(t, "probe", fmt.Sprint(ids(d)), "[m2 m3]")
			r.step(port.Delivered{ID: d.ID, Errs: []error{rejected, errNotTried}})
		}
		if s, ok := maybe[port.Settle](r); ok {
			wantEqual(t, "parked", drawn(s.Settlements[0].Park), "m1 dead captures #1, m2 retry captures, m3 waiting")
			return
		}
	}
	t.Fatal("the lane never reads what could release the brake")
}

// A straggler may have a lower number than the record that holds its key, and is
// then the first of the key's queue: due at once, and nobody else will say so.
//
// Promises: S
func TestAStragglerBehindAYoungerHeadIsLookedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		view  store.ParkedView
		seq   int64
		looks bool
	}{
		"below the head":             {store.ParkedView{}, 5, true},
		"above the head":             {store.ParkedView{}, 15, false},
		"the head's number unknown":  {captured("a"), 15, true},
		"before the head of another": {captured("b"), 15, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, port.Config{})
			r.leadWith(lanes(1, tc.view))
			b := r.batch(0, "p1", "a")
			b.Meta[0].Seq, b.More = 10, true
			r.read(b)
			if len(tc.view.Captured) == 0 || tc.view.Captured[0] != "a" {
				r.deliver(rejected)
			}
			b = r.batch(0, "p2", "a")
			b.Meta[0].Seq = tc.seq
			r.read(b)
			r.settle(0)
			r.pass(3 * time.Second)
			looked := false
			for rd, ok := maybe[port.Read](r); ok && !looked; rd, ok = maybe[port.Read](r) {
				looked = rd.Reads[0].Parked
			}
			wantEqual(t, "looks", looked, tc.looks)
		})
	}
}

// A lane that a person has paused is not read, and its acts are executed: one of
// them ends the pause.
//
// Promises: S
func TestAPausedLaneIsNotRead(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(1, store.ParkedView{}))
	ask := func(kind store.ActKind, id int64, paused bool) {
		t.Helper()
		r.now += 700 * time.Millisecond
		r.step(port.Tick{})
		l, _ := maybe[port.Lease](r)
		r.step(port.Leased{ID: l.ID, Grant: r.grant(store.Request{ID: id, Act: store.Act{Kind: kind}})})
		s := take[port.Settle](r)
		wantEqual(t, "acts", fmt.Sprint(s.Settlements[0].Requests), fmt.Sprintf("[%d]", id))
		none[port.Read](r)
		r.step(port.Settled{ID: s.ID})
		look := take[port.Read](r)
		wantEqual(t, "looks at what is parked", look.Reads[0].Parked, true)
		r.step(port.ReadDone{ID: look.ID, Batches: []store.Batch{r.parkedBatch(store.ParkedView{Paused: paused}, 0, 0)}})
	}
	r.read() // nothing
	ask(store.ActPause, 1, true)
	r.pass(600 * time.Millisecond)
	r.step(port.Woke{ID: take[port.Wait](r).ID})
	none[port.Read](r)
	ask(store.ActResume, 2, false)
	wantEqual(t, "reads again", take[port.Read](r).Reads[0].Parked, false)
	p := factsOf[port.LanePaused](r)
	if len(p) != 2 || !p[0].On || p[1].On || p[0].Reason != port.PausedByPerson {
		t.Errorf("paused %+v", p)
	}
	r = newRig(t, port.Config{})
	r.leadWith(lanes(1, store.ParkedView{Paused: true}))
	none[port.Read](r)
}

// Writers say 9999-12-31 or infinity for "not yet", which is more than a
// Duration holds.
func TestWhatIsScheduledForNeverIsNotDue(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	b := r.batch(0, "p1", "a", "b")
	b.Meta[0].DueIn = math.MaxInt64
	r.read(b)
	wantEqual(t, "sent", fmt.Sprint(ids(r.deliver())), "[m2]")
	s := r.settle(0)
	if due := s.Park[0].DueIn; s.Park[0].State != store.Scheduled || due < never-time.Minute {
		t.Errorf("parked as %v for %v", s.Park[0].State, due)
	}
	v := store.ParkedView{HasDue: true, NextDue: math.MaxInt64, Records: 1}
	l := newRig(t, port.Config{}).e.newLane(store.LaneGrant{Parked: v})
	if r.e.wantsParked(l) {
		t.Error("due by the view")
	}
}

// What a sink puts into its errors must not keep a settlement from being taken.
//
// Promises: S
func TestWhatIsParkedFitsADatabase(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(r.batch(0, "p1", "a"))
	nasty := strings.Repeat("é", 400) + "\x00\xff"
	r.deliver(broker.Rejected(errors.New("\xff\x00"+nasty), "\x00\xff"+nasty, ""))
	p := r.settle(0).Park[0]
	for _, s := range []string{p.Code, p.Error} {
		if !utf8.ValidString(s) || strings.Contains(s, "\x00") || s == "" || len(s) > mark.MaxText {
			t.Errorf("%q", s)
		}
	}
	wantEqual(t, "code", len(p.Code) <= mark.MaxCode, true)
}

// A record of which no time is known does not wait for ever: a store may have announced
// too little.
// Promises: S
func TestAnOldViewIsReadAgain(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(2, store.ParkedView{Records: 1}))
	r.e.lanes[1].records = 0
	r.read()
	pass := func(d time.Duration) {
		for end := r.now + d; r.now < end; r.untimed() {
			r.pass(100 * time.Millisecond)
		}
	}
	pass(viewAge - time.Second)
	none[port.Read](r)
	pass(time.Second)
	rd := r.parkedRead()
	if len(rd.Reads) != 1 || rd.Reads[0].Lane != 0 || rd.Reads[0].Keys != nil {
		t.Fatalf("%+v is read, want the whole view of lane 0", rd.Reads)
	}
	b := r.batch(0, "", "")
	b.Position, b.Meta[0].State, b.Parked.Records = nil, store.Retry, 1
	r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{b}})
	wantEqual(t, "sent", len(r.deliver().Msgs), 1)
	r.settle(0)
	pass(2 * viewAge)
	for rd, ok := maybe[port.Read](r); ok; rd, ok = maybe[port.Read](r) {
		if rd.Reads[0].Parked {
			t.Errorf("%+v is read of a lane with nothing parked", rd.Reads[0])
		}
	}
}

// An act of a person is executed while the broker, or the destination of its lane, is
// down, and nothing of the lane is sent before it counts.
// Promises: C, S
func TestActsDoNotWaitForAnOutage(t *testing.T) {
	for _, destination := range []string{"", "orders"} {
		t.Run(destination, func(t *testing.T) {
			out := broker.Outage(errTest, "o1", destination)
			r := newRig(t, port.Config{})
			r.lead(1)
			r.read(r.batch(0, "p1", keys(40)...))
			r.deliver(slices.Repeat([]error{out}, 40)...)
			s := r.settledInOutage(out)
			wantEqual(t, "requests", fmt.Sprint(s.Requests), "[7]")
			if rd := r.parkedRead(); rd.Reads[0].Keys != nil {
				t.Errorf("read %+v, want the view first", rd)
			}
		})
	}
}

// settledInOutage lets every call fail with out, answers each heartbeat with request 7, and returns the
// next settlement, which it answers.
func (r *rig) settledInOutage(out error) store.Settlement {
	r.t.Helper()
	for end := r.now + time.Minute; r.now < end; {
		r.now += 10 * time.Millisecond
		r.step(port.Tick{})
		if l, ok := maybe[port.Lease](r); ok {
			r.step(port.Leased{ID: l.ID, Grant: r.grant(store.Request{ID: 7, Lane: 0})})
		}
		if d, ok := maybe[port.Deliver](r); ok {
			r.step(port.Delivered{ID: d.ID, Errs: slices.Repeat([]error{out}, len(d.Msgs))})
		}
		if s, ok := maybe[port.Settle](r); ok {
			r.step(port.Settled{ID: s.ID})
			return s.Settlements[0]
		}
	}
	r.t.Fatal("nothing was settled within a minute of the outage")
	return store.Settlement{}
}

// An act of a person does not wait for the end of an outage either if a part of the lane's
// first batch is done.
//
// Promises: C, S
func TestActsDoNotWaitForTheRestOfABatch(t *testing.T) {
	down := broker.Outage(errTest, "o1", "orders")
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(r.batch(0, "p1", append(keys(40), "c@audit")...))
	r.deliver(append(slices.Repeat([]error{down}, 40), broker.Rejected(errTest, "r1", "audit"))...)
	wantEqual(t, "parks", len(r.settledInOutage(down).Park), 41)
	wantEqual(t, "requests", fmt.Sprint(r.settledInOutage(down).Requests), "[7]")
}
