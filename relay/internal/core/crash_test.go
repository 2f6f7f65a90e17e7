package core

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/mark"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// after is a grant of n lanes whose owners before ended so often without progress.
func after(n, crashes int) store.Grant {
	g := lanes(n, store.ParkedView{})
	for i := range g.Lanes {
		g.Lanes[i].Crashes = crashes
	}
	return g
}

// settled answers the Settle that was asked for and returns its one settlement.
func (r *rig) settled() store.Settlement {
	r.t.Helper()
	s := take[port.Settle](r)
	r.step(port.Settled{ID: s.ID})
	if len(s.Settlements) != 1 {
		r.t.Fatalf("%d lanes are settled, want one", len(s.Settlements))
	}
	return s.Settlements[0]
}

// suspected leads with one lane in which a suspect with so many attempts is due, up to
// the moment at which it is to be sent. The relay has lived for as long as a last
// attempt needs.
func suspected(t *testing.T, attempts, buried int) *rig {
	t.Helper()
	r := newRig(t, port.Config{Retry: port.Backoff{MaxAttempts: 3}, DeliverTimeout: 8 * time.Second})
	g := lanes(1, store.ParkedView{Captured: []string{"a"}, Heads: []store.Head{{Seq: 7, HasDue: true}}, HasDue: true, Records: 1})
	g.Lanes[0].Buried = buried
	r.leadWith(g)
	r.pass(mark.CrashLife * r.e.cfg.DeliverTimeout)
	r.dueSuspect(attempts)
	return r
}

// dueSuspect answers the read of what is due with a suspect that has so many attempts.
func (r *rig) dueSuspect(attempts int) {
	r.t.Helper()
	r.step(port.ReadDone{ID: r.parkedRead().ID, Batches: []store.Batch{{
		Messages: []postrider.Message{{ID: "m7", Topic: "orders", Key: "a"}},
		Meta:     []store.Meta{{Seq: 7, State: store.Retry, Attempts: attempts, Last: true, Code: store.CodeCrashed}},
	}}})
}

func TestALaneWhoseOwnersEndedIsSentInSmallPieces(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(after(2, crashNarrow))
	rd := take[port.Read](r)
	for _, one := range rd.Reads {
		if one.MaxRecords > crashPage {
			t.Errorf("%d records are read of a lane whose owners ended, want %d at the most", one.MaxRecords, crashPage)
		}
	}
	bs := []store.Batch{r.batch(0, "p1", "a"), r.batch(1, "p1", "b")}
	bs[0].More, bs[1].More = true, true
	r.step(port.ReadDone{ID: rd.ID, Batches: bs})
	first, second := take[port.Deliver](r), take[port.Deliver](r)
	if first.Lane == second.Lane {
		t.Errorf("lane %d is sent twice, the other one waits", second.Lane)
	}
	r.step(port.Delivered{ID: first.ID})
	none[port.Read](r) // not before the first is settled
	r.settled()
	if rd := take[port.Read](r); len(rd.Reads) != 1 || rd.Reads[0].Lane != first.Lane {
		t.Errorf("%+v is read, want lane %d", rd.Reads, first.Lane)
	}
}

func TestMessagesOfALaneThatGoesOnEndingOwnersAreSetAside(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(after(1, crashAside))
	r.read(r.batch(0, "p1", "a", "b", "a", ""))
	none[port.Deliver](r)
	s := r.settled()
	wantEqual(t, "parked", drawn(s.Park), "m1 retry captures, m2 retry captures, m3 waiting, m4 retry")
	for _, p := range s.Park {
		wantEqual(t, "code of "+p.Message.ID, p.Code, store.CodeCrashed)
	}
}

// Promises: S
func TestAnAttemptAtASuspectIsRecordedBeforeItIsSent(t *testing.T) {
	r := suspected(t, 1, 0)
	none[port.Deliver](r)
	s := r.settled()
	wantEqual(t, "recorded", drawn(s.Park), "m7 retry captures #2")
	wantEqual(t, "code", s.Park[0].Code, store.CodeCrashed)
	if s.Position != nil || s.Delivered != 0 || s.Park[0].DueIn <= 0 {
		t.Errorf("the mark is %+v, want nothing but a park that is due later", s)
	}
	r.deliver()
	s = r.settled()
	if len(s.Unpark) != 1 || s.Unpark[0] != 7 || s.Delivered != 1 || len(s.Park) != 0 {
		t.Errorf("after its acknowledgement %+v is settled, want it unparked", s)
	}
}

// A suspect is often what tries a destination that is down: nothing else may be left.
// Promises: S
func TestAnAttemptIsRecordedForAProbeToo(t *testing.T) {
	for _, down := range []string{"", "orders"} {
		t.Run(down, func(t *testing.T) {
			r := newRig(t, port.Config{})
			r.leadWith(lanes(1, store.ParkedView{Captured: []string{"a"}, Heads: []store.Head{{Seq: 7, HasDue: true}}, HasDue: true, Records: 1}))
			r.e.scope(down).open = true
			r.dueSuspect(0)
			none[port.Deliver](r)
			wantEqual(t, "recorded", drawn(r.settled().Park), "m7 retry captures #1")
			take[port.Deliver](r)
		})
	}
}

// Promises: S
func TestAnAnswerTakesTheAttemptsBack(t *testing.T) {
	for name, err := range map[string]error{
		"outage":    broker.Outage(errTest, "down", ""),
		"throttled": broker.Throttled(errTest, "slow", "", time.Second),
		"unknown":   broker.Unknown(errTest, "eof", ""),
		"not tried": broker.ErrNotTried,
	} {
		t.Run(name, func(t *testing.T) {
			r := suspected(t, 1, 0)
			r.settled()
			r.deliver(err)
			s := r.settled()
			wantEqual(t, "parked", drawn(s.Park), "m7 retry captures")
			if s.Park[0].Code == store.CodeCrashed {
				t.Error("a message that was answered is a suspect still")
			}
		})
	}
}

func TestACallWithoutAnAnswerTakesTheAttemptsBack(t *testing.T) {
	r := suspected(t, 1, 0)
	r.settled()
	d := take[port.Deliver](r)
	r.pass(8*time.Second/crashShare + time.Second)
	s := r.settled()
	wantEqual(t, "parked", drawn(s.Park), "m7 retry captures")
	wantEqual(t, "code", s.Park[0].Code, store.CodeCrashed)
	r.step(port.Delivered{ID: d.ID})
	if s = r.settled(); len(s.Unpark) != 1 {
		t.Errorf("%+v is settled, want it unparked", s)
	}
}

func TestASuspectThatUsedItsAttemptsUpIsDead(t *testing.T) {
	r := suspected(t, 4, 0) // one that others shared, and three of its own
	none[port.Deliver](r)
	s := r.settled()
	wantEqual(t, "parked", drawn(s.Park), "m7 dead captures #3")
	wantEqual(t, "code", s.Park[0].Code, store.CodeCrashed)
}

func TestTheBrakeHoldsForSuspectsToo(t *testing.T) {
	r := suspected(t, 4, buriedMost)
	s := r.settled()
	wantEqual(t, "recorded", drawn(s.Park), "m7 retry captures #4")
	r.deliver()
	if s = r.settled(); len(s.Unpark) != 1 {
		t.Errorf("%+v is settled, want it unparked", s)
	}
}

func TestSuspectsWithoutAnAttemptAreSentTogether(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(1, store.ParkedView{HasDue: true, Records: 5}))
	b := r.batch(0, "", "", "a", "", "b", "a")
	b.Position = nil
	for i := range b.Meta {
		b.Meta[i].State, b.Meta[i].Code = store.Retry, store.CodeCrashed
	}
	b.Meta[0].Code, b.Meta[3].Attempts = "", 1
	r.step(port.ReadDone{ID: r.parkedRead().ID, Batches: []store.Batch{b}})
	wantEqual(t, "recorded", drawn(r.settled().Park), "m2 retry captures #1, m3 retry #1")
	wantEqual(t, "sent", fmt.Sprint(ids(r.deliver())), "[m2 m3]")
	r.settled()
	if again := r.parkedRead(); again.Reads[0].Keys != nil {
		t.Error("what stood beside the suspects is not looked for")
	}
}

func TestASuspectWithAnAttemptIsSentAlone(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(1, store.ParkedView{HasDue: true, Records: 3}))
	r.pass(time.Minute)
	b := r.batch(0, "", "", "", "")
	b.Position = nil
	for i := range b.Meta {
		b.Meta[i].State, b.Meta[i].Code, b.Meta[i].Attempts = store.Retry, store.CodeCrashed, i
	}
	b.Meta[0].Code = ""
	r.step(port.ReadDone{ID: r.parkedRead().ID, Batches: []store.Batch{b}})
	wantEqual(t, "recorded", drawn(r.settled().Park), "m2 retry #2")
	wantEqual(t, "sent", fmt.Sprint(ids(r.deliver())), "[m2]")
}

// No more suspects go together than a few, and than one call of the sink takes.
func TestSuspectsThatGoTogetherAreFew(t *testing.T) {
	for most, want := range map[int]int{2: 2, 0: crashPage} {
		r := newRig(t, port.Config{Sink: broker.Info{MaxBatch: most}})
		r.leadWith(lanes(1, store.ParkedView{HasDue: true, Records: crashPage + 1}))
		b := r.batch(0, "", make([]string, crashPage+1)...)
		b.Position = nil
		for i := range b.Meta {
			b.Meta[i].State, b.Meta[i].Code = store.Retry, store.CodeCrashed
		}
		r.step(port.ReadDone{ID: r.parkedRead().ID, Batches: []store.Batch{b}})
		wantEqual(t, "recorded", len(r.settled().Park), want)
		wantEqual(t, "sent", len(r.deliver().Msgs), want)
	}
}

// A relay that is killed soon makes no late attempts: nothing shows whether it was the
// message or somebody else who ended it.
// Promises: S
func TestAYoungRelayMakesNoLateAttempt(t *testing.T) {
	const timeout, attempts = 8 * time.Second, 3
	for ends := 1; ends <= attempts; ends++ {
		age := mark.CrashLife * timeout
		for range attempts - ends {
			age /= 2
		}
		t.Run(fmt.Sprint(ends), func(t *testing.T) {
			r := newRig(t, port.Config{Retry: port.Backoff{MaxAttempts: attempts}, DeliverTimeout: timeout})
			born := r.now
			r.leadWith(lanes(1, store.ParkedView{Captured: []string{"a"}, Heads: []store.Head{{Seq: 7, HasDue: true}}, HasDue: true, Records: 1}))
			r.pass(age - time.Second)
			r.dueSuspect(ends)
			none[port.Deliver](r)
			s := r.settled()
			wantEqual(t, "postponed", drawn(s.Park), fmt.Sprint("m7 retry captures #", ends))
			wantEqual(t, "code", s.Park[0].Code, store.CodeCrashed)
			wantEqual(t, "due", r.now+s.Park[0].DueIn, born+age)
			r.pass(time.Second)
			r.dueSuspect(ends)
			wantEqual(t, "recorded", drawn(r.settled().Park), fmt.Sprint("m7 retry captures #", ends+1))
			take[port.Deliver](r)
		})
	}
}

// The attempts of a message that fails are not those of one that ends its relays.
func TestOrdinaryAttemptsAreNotThoseOfASuspect(t *testing.T) {
	r := newRig(t, port.Config{})
	g := after(1, crashAside)
	g.Lanes[0].Parked = store.ParkedView{HasDue: true, Records: 1}
	r.leadWith(g)
	b := r.batch(0, "", "")
	b.Position, b.Meta[0].State, b.Meta[0].Code, b.Meta[0].Attempts = nil, store.Retry, "nack", 8
	r.step(port.ReadDone{ID: r.parkedRead().ID, Batches: []store.Batch{b}})
	s := r.settled()
	wantEqual(t, "recorded", drawn(s.Park), "m1 retry #1")
	wantEqual(t, "code", s.Park[0].Code, store.CodeCrashed+"/8")
	r.deliver(broker.Failed(errTest, "nack", ""))
	wantEqual(t, "parked", drawn(r.settled().Park), "m1 retry #9")
}

// A suspect that failed before keeps how often, also when the process that sent it
// ends, or when its attempt is taken back or postponed.
// Promises: S
func TestASuspectKeepsItsOrdinaryAttempts(t *testing.T) {
	const code = store.CodeCrashed + "/8"
	start := func(t *testing.T, life time.Duration) *rig {
		r := newRig(t, port.Config{Retry: port.Backoff{MaxAttempts: 10}, DeliverTimeout: 8 * time.Second})
		r.leadWith(lanes(1, store.ParkedView{HasDue: true, Records: 1}))
		r.pass(life)
		b := r.batch(0, "", "")
		b.Position, b.Meta[0].State, b.Meta[0].Code, b.Meta[0].Attempts = nil, store.Retry, code, 1
		r.step(port.ReadDone{ID: r.parkedRead().ID, Batches: []store.Batch{b}})
		return r
	}
	want := func(t *testing.T, what string, s store.Settlement, parks string) {
		t.Helper()
		wantEqual(t, what, drawn(s.Park), parks)
		wantEqual(t, "code when "+what, s.Park[0].Code, code)
	}
	t.Run("failed", func(t *testing.T) {
		r := start(t, time.Minute)
		want(t, "recorded", r.settled(), "m1 retry #2")
		r.deliver(broker.Failed(errTest, "nack", ""))
		wantEqual(t, "parked", drawn(r.settled().Park), "m1 retry #9")
	})
	t.Run("hung", func(t *testing.T) {
		r := start(t, time.Minute)
		r.settled()
		take[port.Deliver](r)
		r.pass(8*time.Second/crashShare + time.Second)
		want(t, "taken back", r.settled(), "m1 retry")
	})
	t.Run("postponed", func(t *testing.T) {
		want(t, "postponed", start(t, 0).settled(), "m1 retry #1")
	})
}

// A suspect whose destination is down is not sent, and no attempt at it is recorded.
// Promises: S
func TestASuspectThatIsNotSentIsNotCharged(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(1, store.ParkedView{HasDue: true, Records: 2}))
	s := r.e.scope("down")
	s.open, s.pause.until = true, r.now+time.Minute
	b := r.batch(0, "", "", "@down")
	b.Position = nil
	for i := range b.Meta {
		b.Meta[i].State, b.Meta[i].Code = store.Retry, store.CodeCrashed
	}
	r.step(port.ReadDone{ID: r.parkedRead().ID, Batches: []store.Batch{b}})
	wantEqual(t, "recorded", drawn(r.settled().Park), "m1 retry #1")
	wantEqual(t, "sent", fmt.Sprint(ids(r.deliver())), "[m1]")
	wantEqual(t, "parked", drawn(r.settled().Park), "m2 retry")
}

// A parked record that was answered is not a suspect again, although nothing of its
// lane was acknowledged.
// Promises: S
func TestASuspectThatWasAnsweredIsOneOfMany(t *testing.T) {
	r := newRig(t, port.Config{})
	g := after(1, crashAside)
	g.Lanes[0].Parked = store.ParkedView{HasDue: true, Records: 2}
	r.leadWith(g)
	b := r.batch(0, "", "", "")
	b.Position, b.Meta[0].State, b.Meta[1].State = nil, store.Retry, store.Retry
	one := store.Batch{Messages: b.Messages[:1], Meta: b.Meta[:1]}
	r.step(port.ReadDone{ID: r.parkedRead().ID, Batches: []store.Batch{one}})
	r.settled()
	r.deliver(broker.Unknown(errTest, "eof", ""))
	r.settled()
	r.pass(time.Second)
	r.step(port.ReadDone{ID: r.parkedRead().ID, Batches: []store.Batch{b}})
	wantEqual(t, "recorded", drawn(r.settled().Park), "m2 retry #1") // the other one has not been sent
	r.deliver()
	r.settled()
	r.pass(time.Second)
	r.step(port.ReadDone{ID: r.parkedRead().ID, Batches: []store.Batch{one}})
	wantEqual(t, "sent", fmt.Sprint(ids(r.deliver())), "[m1]")
}

// Nothing is kept of records that were answered once their lane is not suspected.
func TestAnsweredSuspectsAreForgotten(t *testing.T) {
	r := newRig(t, port.Config{})
	g := after(1, crashAside)
	g.Lanes[0].Parked = store.ParkedView{HasDue: true, Records: 1}
	r.leadWith(g)
	unknown := func() {
		b := r.batch(0, "", "")
		b.Position, b.Meta[0].State, b.Meta[0].Code = nil, store.Retry, store.CodeCrashed
		r.step(port.ReadDone{ID: r.parkedRead().ID, Batches: []store.Batch{b}})
		r.settled()
		r.deliver(broker.Unknown(errTest, "eof", ""))
		r.settled()
	}
	unknown()
	wantEqual(t, "kept of a suspected lane", len(r.e.lanes[0].survivors), 1)
	r.pass(50 * time.Millisecond)
	r.read(r.batch(0, "p1", "b"))
	r.settled()
	wantEqual(t, "kept once the lane moved", len(r.e.lanes[0].survivors), 0)
	r.pass(time.Second)
	unknown()
	wantEqual(t, "kept of a lane that is not suspected", len(r.e.lanes[0].survivors), 0)
}

// A relay that is told to end before it could send a suspect leaves no attempt behind.
func TestADrainTakesBackAnAttemptThatWasNotMade(t *testing.T) {
	r, _ := twoLanes(t)
	mark := take[port.Settle](r)
	r.step(port.Drain{})
	r.step(port.Settled{ID: mark.ID})
	none[port.Deliver](r)
	wantEqual(t, "taken back", drawn(r.settled().Park), "m7 retry captures")
}

func TestALaneThatHasRunEmptyIsNotSuspected(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(after(1, 9))
	r.read(store.Batch{Lane: 0, Position: store.Position("p0")})
	r.step(port.Woke{ID: take[port.Wait](r).ID})
	rd := take[port.Read](r)
	if n := rd.Reads[0].MaxRecords; n <= crashPage {
		t.Fatalf("%d records are read, want a whole page", n)
	}
	r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{r.batch(0, "p1", "a", "b")}})
	if d := take[port.Deliver](r); len(d.Msgs) != 2 {
		t.Errorf("%v are sent, want both", ids(d))
	}
}

// twoLanes leads with two lanes, up to the moment at which a suspect of lane 0 is to
// be marked. It returns the read of lane 1, which is to be answered.
func twoLanes(t *testing.T) (*rig, port.Read) {
	t.Helper()
	r := newRig(t, port.Config{DeliverTimeout: 8 * time.Second})
	g := lanes(2, store.ParkedView{})
	g.Lanes[0].Parked = store.ParkedView{Captured: []string{"a"}, Heads: []store.Head{{Seq: 7, HasDue: true}}, HasDue: true, Records: 1}
	r.leadWith(g)
	due, log := take[port.Read](r), take[port.Read](r)
	if log.Reads[0].Parked {
		due, log = log, due
	}
	r.step(port.ReadDone{ID: due.ID, Batches: []store.Batch{{
		Messages: []postrider.Message{{ID: "m7", Topic: "orders", Key: "a"}},
		Meta:     []store.Meta{{Seq: 7, State: store.Retry, Last: true, Code: store.CodeCrashed}},
	}}})
	return r, log
}

// Promises: S
func TestASuspectThatHangsHoldsTheOtherLanesForAWhile(t *testing.T) {
	r, log := twoLanes(t)
	wantEqual(t, "recorded", drawn(r.settled().Park), "m7 retry captures #1")
	hung := take[port.Deliver](r)
	r.step(port.ReadDone{ID: log.ID, Batches: []store.Batch{r.batch(1, "p1", "b")}})
	none[port.Deliver](r)
	r.pass(8*time.Second/crashShare + time.Millisecond)
	none[port.Deliver](r) // not before the attempt is taken back
	wantEqual(t, "taken back", drawn(r.settled().Park), "m7 retry captures")
	if d := take[port.Deliver](r); d.Lane != 1 {
		t.Errorf("lane %d delivers, want lane 1", d.Lane)
	}
	r.step(port.Delivered{ID: hung.ID, Errs: []error{broker.Unknown(errTest, "timeout", "")}})
}

// Promises: S
func TestACallThatHangsHoldsASuspectForAWhile(t *testing.T) {
	r, log := twoLanes(t)
	mark := take[port.Settle](r)
	r.step(port.ReadDone{ID: log.ID, Batches: []store.Batch{r.batch(1, "p1", "b")}})
	none[port.Deliver](r)
	r.step(port.Settled{ID: mark.ID})
	alone := take[port.Deliver](r)
	r.step(port.Delivered{ID: alone.ID})
	none[port.Deliver](r)
	r.settled()
	if hung := take[port.Deliver](r); hung.Lane != 1 {
		t.Fatalf("lane %d delivers, want lane 1", hung.Lane)
	}
	r.e.lanes[0].refresh = true
	due := r.parkedRead()
	b := store.Batch{
		Messages: []postrider.Message{{ID: "m8", Topic: "orders", Key: "c"}},
		Meta:     []store.Meta{{Seq: 8, State: store.Retry, Last: true, Code: store.CodeCrashed}},
	}
	r.step(port.ReadDone{ID: due.ID, Batches: []store.Batch{b}})
	none[port.Settle](r)
	r.pass(8*time.Second/crashShare + time.Millisecond)
	wantEqual(t, "recorded", drawn(r.settled().Park), "m8 retry captures #1")
	if d := take[port.Deliver](r); d.Lane != 0 {
		t.Errorf("lane %d delivers, want lane 0", d.Lane)
	}
}

func TestSuspectsWaitForASignOfLife(t *testing.T) {
	for name, sign := range map[string]func(*rig){
		"pong": func(r *rig) { r.step(port.Pong{}) },
		"none": func(r *rig) { r.pass(crashSign) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, port.Config{Sink: broker.Info{Ping: func(context.Context) error { return nil }}})
			r.leadWith(lanes(1, store.ParkedView{HasDue: true, Records: 1}))
			b := r.batch(0, "", "")
			b.Position, b.Meta[0].State, b.Meta[0].Code = nil, store.Retry, store.CodeCrashed
			r.step(port.ReadDone{ID: r.parkedRead().ID, Batches: []store.Batch{b}})
			r.pass(time.Second)
			none[port.Settle](r)
			none[port.Deliver](r)
			sign(r)
			if name == "pong" {
				wantEqual(t, "recorded", drawn(r.settled().Park), "m1 retry #1")
			}
			take[port.Deliver](r)
			none[port.Settle](r) // without a sign no attempt is recorded
		})
	}
}

// A narrow lane is sent in larger and larger pieces while all goes well: a backlog
// after an outage in which relays were killed is narrow in every lane.
func TestANarrowLaneWidensAsItIsAcknowledged(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(after(1, crashNarrow))
	sent, reads := 0, 0
	for ; sent < r.e.cfg.Window; reads++ {
		rd := take[port.Read](r)
		n := rd.Reads[0].MaxRecords
		if n > max(crashPage, sent) {
			t.Fatalf("%d records are read after %d were acknowledged", n, sent)
		}
		b := r.batch(0, fmt.Sprint("p", reads+1), make([]string, n)...)
		b.More = true
		r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{b}})
		r.step(port.Delivered{ID: take[port.Deliver](r).ID})
		r.settled()
		sent += n
	}
	if reads > 10 {
		t.Errorf("%d messages took %d reads", sent, reads)
	}
}

// A lane that has nothing to send now cannot have ended its owners with what comes
// later, whatever is scheduled in it for a later time.
// Promises: S
func TestALaneWithNothingDueIsNotSuspected(t *testing.T) {
	for name, view := range map[string]store.ParkedView{
		"scheduled": {HasDue: true, NextDue: 24 * time.Hour, Records: 1},
		"retry":     {Captured: []string{"k"}, Heads: []store.Head{{Seq: 1, HasDue: true, DueIn: 5 * time.Minute}}, HasDue: true, NextDue: 5 * time.Minute, Records: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, port.Config{})
			g := lanes(1, view)
			g.Lanes[0].Crashes = 9
			r.leadWith(g)
			r.read(store.Batch{Lane: 0, Position: store.Position("p0")})
			r.step(port.Woke{ID: take[port.Wait](r).ID})
			rd := take[port.Read](r)
			if n := rd.Reads[0].MaxRecords; n <= crashPage {
				t.Errorf("%d records are read, want a whole page", n)
			}
			r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{r.batch(0, "p1", "a", "b")}})
			if d, ok := maybe[port.Deliver](r); !ok || len(d.Msgs) != 2 {
				t.Errorf("%v is sent, want both", d)
			}
		})
	}
}

// While the broker is away nothing is set aside: kills in an outage are no evidence.
func TestNothingIsSetAsideBeforeASignOfLife(t *testing.T) {
	start := func(t *testing.T) *rig {
		r := newRig(t, port.Config{Sink: broker.Info{Ping: func(context.Context) error { return nil }}})
		r.leadWith(after(1, crashAside))
		r.pass(time.Second)
		none[port.Read](r)
		return r
	}
	t.Run("pong", func(t *testing.T) {
		r := start(t)
		r.step(port.Pong{})
		r.read(r.batch(0, "p1", "a"))
		wantEqual(t, "parked", drawn(r.settled().Park), "m1 retry captures")
	})
	t.Run("none", func(t *testing.T) {
		r := start(t)
		r.pass(crashSign)
		r.read(r.batch(0, "p1", "a"))
		take[port.Deliver](r)
	})
}

// A pause of the pipe does not leave an attempt behind that was not made.
func TestAPauseLetsARecordedAttemptBeMade(t *testing.T) {
	r, _ := twoLanes(t)
	mark := take[port.Settle](r)
	r.e.takePause(true)
	r.step(port.Settled{ID: mark.ID})
	wantEqual(t, "sent", fmt.Sprint(ids(r.deliver())), "[m7]")
}
