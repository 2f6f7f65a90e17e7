package core

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
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
	s := take[Settle](r)
	r.step(Settled{ID: s.ID})
	if len(s.Settlements) != 1 {
		r.t.Fatalf("%d lanes are settled, want one", len(s.Settlements))
	}
	return s.Settlements[0]
}

// suspected leads with one lane in which a suspect with so many attempts is due, up to
// the moment at which it is to be sent.
func suspected(t *testing.T, attempts, buried int) *rig {
	t.Helper()
	r := newRig(t, Config{Retry: Backoff{MaxAttempts: 3}, DeliverTimeout: 8 * time.Second})
	g := lanes(1, store.ParkedView{Captured: []string{"a"}, Heads: []store.Head{{Seq: 7, HasDue: true}}, HasDue: true, Records: 1})
	g.Lanes[0].Buried = buried
	r.leadWith(g)
	rd := r.parkedRead()
	r.step(ReadDone{ID: rd.ID, Batches: []store.Batch{{
		Messages: []postrider.Message{{ID: "m7", Topic: "orders", Key: "a"}},
		Meta:     []store.Meta{{Seq: 7, State: store.Retry, Attempts: attempts, Last: true, Code: store.CodeCrashed}},
	}}})
	return r
}

func TestALaneWhoseOwnersEndedIsSentAloneAndInSmallPieces(t *testing.T) {
	r := newRig(t, Config{})
	r.leadWith(after(2, crashNarrow))
	rd := take[Read](r)
	for _, one := range rd.Reads {
		if one.MaxRecords > crashPage {
			t.Errorf("%d records are read of a lane whose owners ended, want %d at the most", one.MaxRecords, crashPage)
		}
	}
	r.step(ReadDone{ID: rd.ID, Batches: []store.Batch{r.batch(0, "p1", "a"), r.batch(1, "p1", "b")}})
	first := take[Deliver](r)
	none[Deliver](r)
	r.step(Delivered{ID: first.ID})
	none[Deliver](r) // not before the first is settled
	r.settled()
	if second := take[Deliver](r); second.Lane == first.Lane {
		t.Errorf("lane %d is sent again, the other one waits", second.Lane)
	}
}

func TestMessagesOfALaneThatGoesOnEndingOwnersAreSetAside(t *testing.T) {
	r := newRig(t, Config{})
	r.leadWith(after(1, crashAside))
	r.read(r.batch(0, "p1", "a", "b", "a", ""))
	none[Deliver](r)
	s := r.settled()
	wantEqual(t, "parked", drawn(s.Park), "m1 retry captures, m2 retry captures, m3 waiting, m4 retry")
	for _, p := range s.Park {
		wantEqual(t, "code of "+p.Message.ID, p.Code, store.CodeCrashed)
	}
}

// Promises: S
func TestAnAttemptAtASuspectIsRecordedBeforeItIsSent(t *testing.T) {
	r := suspected(t, 1, 0)
	none[Deliver](r)
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

// Promises: S
func TestAnAnswerTakesTheAttemptBack(t *testing.T) {
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
			wantEqual(t, "parked", drawn(s.Park), "m7 retry captures #1")
			if s.Park[0].Code == store.CodeCrashed {
				t.Error("a message that was answered is a suspect still")
			}
		})
	}
}

func TestACallWithoutAnAnswerTakesTheAttemptBack(t *testing.T) {
	r := suspected(t, 1, 0)
	r.settled()
	d := take[Deliver](r)
	r.pass(8*time.Second/crashShare + time.Second)
	s := r.settled()
	wantEqual(t, "parked", drawn(s.Park), "m7 retry captures #1")
	wantEqual(t, "code", s.Park[0].Code, store.CodeCrashed)
	r.step(Delivered{ID: d.ID})
	if s = r.settled(); len(s.Unpark) != 1 {
		t.Errorf("%+v is settled, want it unparked", s)
	}
}

func TestASuspectThatUsedItsAttemptsUpIsDead(t *testing.T) {
	r := suspected(t, 3, 0)
	none[Deliver](r)
	s := r.settled()
	wantEqual(t, "parked", drawn(s.Park), "m7 dead captures #3")
	wantEqual(t, "code", s.Park[0].Code, store.CodeCrashed)
}

func TestTheBrakeHoldsForSuspectsToo(t *testing.T) {
	r := suspected(t, 3, buriedMost)
	s := r.settled()
	wantEqual(t, "recorded", drawn(s.Park), "m7 retry captures #3")
	r.deliver()
	if s = r.settled(); len(s.Unpark) != 1 {
		t.Errorf("%+v is settled, want it unparked", s)
	}
}

func TestOneSuspectOfAReadIsSentAtATime(t *testing.T) {
	r := newRig(t, Config{})
	r.leadWith(lanes(1, store.ParkedView{HasDue: true, Records: 3}))
	b := r.batch(0, "", "", "", "")
	b.Position = nil
	for i := range b.Meta {
		b.Meta[i].State = store.Retry
	}
	b.Meta[1].Code, b.Meta[2].Code = store.CodeCrashed, store.CodeCrashed
	rd := r.parkedRead()
	r.step(ReadDone{ID: rd.ID, Batches: []store.Batch{b}})
	wantEqual(t, "recorded", drawn(r.settled().Park), "m2 retry #1")
	d := take[Deliver](r)
	if len(d.Msgs) != 1 || d.Msgs[0].ID != "m2" {
		t.Errorf("%v are sent, want the first suspect alone", ids(d))
	}
	r.step(Delivered{ID: d.ID})
	r.settled()
	if again := r.parkedRead(); again.Reads[0].Keys != nil {
		t.Error("what stood beside the suspect is not looked for")
	}
}

func TestALaneThatHasRunEmptyIsNotSuspected(t *testing.T) {
	r := newRig(t, Config{})
	r.leadWith(after(1, 9))
	r.read(store.Batch{Lane: 0, Position: store.Position("p0")})
	r.step(Woke{ID: take[Wait](r).ID})
	rd := take[Read](r)
	if n := rd.Reads[0].MaxRecords; n <= crashPage {
		t.Fatalf("%d records are read, want a whole page", n)
	}
	r.step(ReadDone{ID: rd.ID, Batches: []store.Batch{r.batch(0, "p1", "a", "b")}})
	if d := take[Deliver](r); len(d.Msgs) != 2 {
		t.Errorf("%v are sent, want both", ids(d))
	}
}

// twoLanes leads with two lanes, up to the moment at which a suspect of lane 0 is to
// be marked. It returns the read of lane 1, which is to be answered.
func twoLanes(t *testing.T) (*rig, Read) {
	t.Helper()
	r := newRig(t, Config{DeliverTimeout: 8 * time.Second})
	g := lanes(2, store.ParkedView{})
	g.Lanes[0].Parked = store.ParkedView{Captured: []string{"a"}, Heads: []store.Head{{Seq: 7, HasDue: true}}, HasDue: true, Records: 1}
	r.leadWith(g)
	due, log := take[Read](r), take[Read](r)
	if log.Reads[0].Parked {
		due, log = log, due
	}
	r.step(ReadDone{ID: due.ID, Batches: []store.Batch{{
		Messages: []postrider.Message{{ID: "m7", Topic: "orders", Key: "a"}},
		Meta:     []store.Meta{{Seq: 7, State: store.Retry, Last: true, Code: store.CodeCrashed}},
	}}})
	return r, log
}

// Promises: S
func TestASuspectThatHangsHoldsTheOtherLanesForAWhile(t *testing.T) {
	r, log := twoLanes(t)
	wantEqual(t, "recorded", drawn(r.settled().Park), "m7 retry captures #1")
	hung := take[Deliver](r)
	r.step(ReadDone{ID: log.ID, Batches: []store.Batch{r.batch(1, "p1", "b")}})
	none[Deliver](r)
	r.pass(8*time.Second/crashShare + time.Millisecond)
	none[Deliver](r) // not before the attempt is taken back
	wantEqual(t, "taken back", drawn(r.settled().Park), "m7 retry captures")
	if d := take[Deliver](r); d.Lane != 1 {
		t.Errorf("lane %d delivers, want lane 1", d.Lane)
	}
	r.step(Delivered{ID: hung.ID, Errs: []error{broker.Unknown(errTest, "timeout", "")}})
}

// Promises: S
func TestACallThatHangsHoldsASuspectForAWhile(t *testing.T) {
	r, log := twoLanes(t)
	mark := take[Settle](r)
	r.step(ReadDone{ID: log.ID, Batches: []store.Batch{r.batch(1, "p1", "b")}})
	none[Deliver](r)
	r.step(Settled{ID: mark.ID})
	alone := take[Deliver](r)
	r.step(Delivered{ID: alone.ID})
	none[Deliver](r)
	r.settled()
	if hung := take[Deliver](r); hung.Lane != 1 {
		t.Fatalf("lane %d delivers, want lane 1", hung.Lane)
	}
	r.e.lanes[0].refresh = true
	due := r.parkedRead()
	b := store.Batch{
		Messages: []postrider.Message{{ID: "m8", Topic: "orders", Key: "c"}},
		Meta:     []store.Meta{{Seq: 8, State: store.Retry, Last: true, Code: store.CodeCrashed}},
	}
	r.step(ReadDone{ID: due.ID, Batches: []store.Batch{b}})
	none[Settle](r)
	r.pass(8*time.Second/crashShare + time.Millisecond)
	wantEqual(t, "recorded", drawn(r.settled().Park), "m8 retry captures #1")
	if d := take[Deliver](r); d.Lane != 0 {
		t.Errorf("lane %d delivers, want lane 0", d.Lane)
	}
}

func TestSuspectsWaitForASignOfLife(t *testing.T) {
	for name, sign := range map[string]func(*rig){
		"pong": func(r *rig) { r.step(Pong{}) },
		"none": func(r *rig) { r.pass(crashSign) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{Sink: broker.Info{Ping: func(context.Context) error { return nil }}})
			r.leadWith(lanes(1, store.ParkedView{HasDue: true, Records: 1}))
			b := r.batch(0, "", "")
			b.Position, b.Meta[0].State, b.Meta[0].Code = nil, store.Retry, store.CodeCrashed
			r.step(ReadDone{ID: r.parkedRead().ID, Batches: []store.Batch{b}})
			r.pass(time.Second)
			none[Settle](r)
			none[Deliver](r)
			sign(r)
			if name == "pong" {
				wantEqual(t, "recorded", drawn(r.settled().Park), "m1 retry #1")
			}
			take[Deliver](r)
			none[Settle](r) // without a sign no attempt is recorded
		})
	}
}

// A narrow lane is sent in larger and larger pieces while all goes well: a backlog
// after an outage in which relays were killed is narrow in every lane.
func TestANarrowLaneWidensAsItIsAcknowledged(t *testing.T) {
	r := newRig(t, Config{})
	r.leadWith(after(1, crashNarrow))
	sent, reads := 0, 0
	for ; sent < r.e.cfg.Window; reads++ {
		rd := take[Read](r)
		n := rd.Reads[0].MaxRecords
		if n > max(crashPage, sent) {
			t.Fatalf("%d records are read after %d were acknowledged", n, sent)
		}
		b := r.batch(0, fmt.Sprint("p", reads+1), make([]string, n)...)
		b.More = true
		r.step(ReadDone{ID: rd.ID, Batches: []store.Batch{b}})
		r.step(Delivered{ID: take[Deliver](r).ID})
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
			r := newRig(t, Config{})
			g := lanes(1, view)
			g.Lanes[0].Crashes = 9
			r.leadWith(g)
			r.read(store.Batch{Lane: 0, Position: store.Position("p0")})
			r.step(Woke{ID: take[Wait](r).ID})
			rd := take[Read](r)
			if n := rd.Reads[0].MaxRecords; n <= crashPage {
				t.Errorf("%d records are read, want a whole page", n)
			}
			r.step(ReadDone{ID: rd.ID, Batches: []store.Batch{r.batch(0, "p1", "a", "b")}})
			if d, ok := maybe[Deliver](r); !ok || len(d.Msgs) != 2 {
				t.Errorf("%v is sent, want both", d)
			}
		})
	}
}
