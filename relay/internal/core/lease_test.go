package core

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/postrider/postrider/relay/internal/captive"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

func TestLeaseIsRenewedEveryThirdOfTheTTL(t *testing.T) {
	r := newRig(t, port.Config{TTL: 3 * time.Second})
	r.lead(2)
	start := r.now
	r.now += 999 * time.Millisecond
	r.step(port.Tick{})
	none[port.Lease](r)
	r.now = start + time.Second
	r.step(port.Tick{})
	take[port.Lease](r)
}

func TestTheFirstLapseOfAnotherIsLookedAt(t *testing.T) {
	r := newRig(t, port.Config{TTL: 3 * time.Second})
	g := lanes(1, store.ParkedView{})
	g.Total, g.Instances, g.Lapse = 2, 2, 400*time.Millisecond
	r.leadWith(g)
	r.now += 399 * time.Millisecond
	r.step(port.Tick{})
	none[port.Lease](r)
	r.now += time.Millisecond
	r.step(port.Tick{})
	g.Lapse = time.Millisecond // not over yet by the database's clock: no storm of questions
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
	r.now += 149 * time.Millisecond
	r.step(port.Tick{})
	none[port.Lease](r)
	r.now += time.Millisecond
	r.step(port.Tick{})
	take[port.Lease](r)
}

func TestPastTheDeadlineNothingIsSentOrSettled(t *testing.T) {
	r := newRig(t, port.Config{TTL: 2 * time.Second})
	r.lead(1)
	r.read(r.batch(0, "p1", "a", "b"))
	d := take[port.Deliver](r)
	none[port.Read](r)
	r.now += 2*time.Second - 250*time.Millisecond // the deadline, a margin before the TTL
	r.step(port.Tick{})
	wantEqual(t, "cancelled", take[port.Cancel](r).ID, d.ID)
	want := port.LeaseLapsed{Lanes: 1, Reason: "lease expired", Since: 1750 * time.Millisecond}
	wantEqual(t, "lapses", fmt.Sprint(factsOf[port.LeaseLapsed](r)), fmt.Sprint([]port.LeaseLapsed{want}))
	r.step(port.Delivered{ID: d.ID})
	r.now += time.Minute
	r.step(port.Tick{})
	none[port.Settle](r)
	none[port.Deliver](r)
	none[port.Read](r)
	none[port.Cancel](r)
	wantEqual(t, "lapses", len(factsOf[port.LeaseLapsed](r)), 1)
}

// lapsed is a lane whose lease runs out with m1 acknowledged, m2 and m3 on their
// way and m4 not begun.
func lapsed(t *testing.T) (*rig, port.Deliver) {
	t.Helper()
	r := newRig(t, port.Config{})
	r.lead(1)
	for i, keys := range [][]string{{"a"}, {"a", "b"}, {"c"}} {
		b := r.batch(0, fmt.Sprint("p", i+1), keys...)
		b.More = true
		r.read(b)
		if i == 0 {
			r.deliver()
		}
	}
	d := take[port.Deliver](r)
	r.now += 1750 * time.Millisecond
	r.step(port.Tick{})
	take[port.Cancel](r)
	maybe[port.Read](r)
	return r, d
}

func TestALaneThatNobodyElseHadLosesNothingByALapse(t *testing.T) {
	r, d := lapsed(t)
	r.step(port.Leased{ID: take[port.Lease](r).ID, Err: errTest})
	r.step(port.Delivered{ID: d.ID, Errs: []error{unknown, rejected}})
	none[port.Settle](r)
	none[port.Deliver](r)
	r.now += time.Minute
	r.step(port.Tick{})
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: lanes(1, store.ParkedView{})})
	wantEqual(t, "settled at once", take[port.Settle](r).Settlements[0].Delivered, 1)
	r.pass(time.Second)
	wantEqual(t, "sent again", fmt.Sprint(ids(r.deliver())), "[m2 m3]")
	wantEqual(t, "then", fmt.Sprint(ids(r.deliver())), "[m4]")
	wantEqual(t, "lanes lost", len(factsOf[port.LaneLost](r)), 0)
	wantEqual(t, "parts down and up: the store, by the first answer", len(factsOf[port.HealthChanged](r)), 2)
	wantEqual(t, "parked", len(factsOf[port.RecordParked](r)), 0)
}

func TestALaneThatSomebodyElseHadIsReadAnewAfterALapse(t *testing.T) {
	r, d := lapsed(t)
	g := lanes(1, store.ParkedView{})
	g.Lanes[0].Epoch = 12 // taken, given back, taken again
	r.now += time.Minute
	r.step(port.Leased{ID: take[port.Lease](r).ID, Err: errTest})
	r.now += time.Minute
	r.step(port.Tick{})
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
	wantEqual(t, "lost", fmt.Sprint(factsOf[port.LaneLost](r)), "[{0 taken}]")
	wantEqual(t, "held messages", r.e.msgs, 0)
	if rd := take[port.Read](r); rd.Reads[0].Epoch != 12 || string(rd.Reads[0].After) != "p0" {
		t.Errorf("reads %+v, want from the settled position under the new epoch", rd.Reads[0])
	}
	r.step(port.Delivered{ID: d.ID})
	none[port.Settle](r)
}

func TestALeaseCountsFromBeforeItWasAsked(t *testing.T) {
	r := newRig(t, port.Config{TTL: 2 * time.Second})
	r.step(port.Start{})
	l := take[port.Lease](r)
	r.now += 1900 * time.Millisecond
	r.step(port.Leased{ID: l.ID, Grant: lanes(1, store.ParkedView{})})
	none[port.Read](r)
	wantEqual(t, "lanes gained", len(factsOf[port.LaneGained](r)), 0)
}

func TestALaneDeliversNothingBeforeItsCancelledCallIsBack(t *testing.T) {
	for name, epoch := range map[string]int64{"nobody else had it": 10, "somebody else had it": 12} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, port.Config{})
			r.lead(1)
			r.read(r.batch(0, "p1", "a"))
			d := take[port.Deliver](r)
			none[port.Read](r)
			r.step(port.ClockJump{})
			take[port.Cancel](r)
			g := lanes(1, store.ParkedView{})
			g.Lanes[0].Epoch = epoch
			r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
			if rd, ok := maybe[port.Read](r); ok {
				r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{r.batch(0, "p1", "a")}})
			}
			none[port.Deliver](r)
			r.step(port.Delivered{ID: d.ID, Errs: []error{errTest}})
			r.pass(time.Second)
			take[port.Deliver](r)
		})
	}
}

func TestAnUnansweredSettleIsRepeatedUnchangedAlsoAfterALapse(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(r.batch(0, "p1", "a"))
	r.deliver()
	r.pass(1100 * time.Millisecond)
	s := take[port.Settle](r)
	r.step(port.Settled{ID: s.ID, Err: errTest})
	r.pass(time.Second)
	again := take[port.Settle](r)
	if !reflect.DeepEqual(again.Settlements, s.Settlements) || again.ID == s.ID {
		t.Fatalf("repeated %+v as %+v", s, again)
	}
	r.step(port.ClockJump{})
	l := take[port.Lease](r)
	r.step(port.Settled{ID: again.ID, Err: errTest})
	r.step(port.Leased{ID: l.ID, Grant: store.Grant{Identity: "db", Total: 1, Instances: 2}}) // somebody else had it
	wantEqual(t, "lanes lost", len(factsOf[port.LaneLost](r)), 1)
	r.now += time.Second
	r.step(port.Tick{})
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: lanes(1, store.ParkedView{})})
	wantEqual(t, "lanes taken while a settlement is open", len(r.e.held), 0)
	r.pass(time.Second)
	s = take[port.Settle](r)
	none[port.Deliver](r)
	r.step(port.Settled{ID: s.ID})
	r.now += time.Second
	r.step(port.Tick{})
	l = take[port.Lease](r)
	r.step(port.Leased{ID: l.ID, Grant: lanes(1, store.ParkedView{})}) // an answer from before the settlement
	wantEqual(t, "lanes taken with an old epoch", len(r.e.held), 0)
	r.now += time.Second
	r.step(port.Tick{})
	g := lanes(1, store.ParkedView{})
	g.Lanes[0].Epoch = 11
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
	wantEqual(t, "lanes", len(r.e.held), 1)
}

func TestALostLaneIsDroppedAtOnce(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(2)
	r.read(r.batch(0, "p1", "a"), r.batch(1, "p1", "b"))
	r.deliver()
	r.deliver()
	r.step(port.Woke{ID: take[port.Wait](r).ID})
	r.read(r.batch(0, "p2", "c"))
	d := take[port.Deliver](r)
	r.pass(1100 * time.Millisecond)
	s := take[port.Settle](r)
	r.step(port.Settled{ID: s.ID, Lost: []store.Lane{0}})
	wantEqual(t, "cancelled", take[port.Cancel](r).ID, d.ID)
	wantEqual(t, "lanes left", fmt.Sprint(r.laneIDs()), "[1]")
	wantEqual(t, "epoch after a settlement", r.e.lanes[1].epoch, 11)
}

func TestAnotherIdentityDropsEverything(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(r.batch(0, "p1", "a"))
	d := take[port.Deliver](r)
	r.now += time.Second
	r.step(port.Tick{})
	g := lanes(1, store.ParkedView{})
	g.Identity = "restored"
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
	wantEqual(t, "cancelled", take[port.Cancel](r).ID, d.ID)
	// The first answer of a new history only says that there is one.
	wantEqual(t, "held messages", r.e.msgs, 0)
	wantEqual(t, "said", len(factsOf[port.HistoryChanged](r)), 1)
}

// A database that refuses a call because it is another one than it was does
// answer: that is no second outage behind the crash that made it so.
func TestARefusalIsNoOutage(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.step(port.ReadDone{ID: take[port.Read](r).ID, Err: store.ErrIdentity})
	wantEqual(t, "histories", len(factsOf[port.HistoryChanged](r)), 1)
	wantEqual(t, "outages", len(factsOf[port.HealthChanged](r)), 0)
	wantEqual(t, "lanes", len(r.e.held), 0)
}

func TestARefusalFromTheHistoryBeforeDropsNothing(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	old := take[port.Read](r) // answered when its history is gone for long
	r.now += time.Second
	r.step(port.Tick{})
	g := lanes(1, store.ParkedView{})
	g.Identity = "promoted"
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
	r.read(r.batch(0, "p1", "a"))
	r.deliver()
	r.now += 1100 * time.Millisecond
	r.step(port.Tick{})
	s := take[port.Settle](r)
	lost := len(factsOf[port.LaneLost](r))
	r.step(port.ReadDone{ID: old.ID, Err: store.ErrIdentity})
	wantEqual(t, "lanes lost by it", len(factsOf[port.LaneLost](r))-lost, 0)
	r.step(port.Settled{ID: s.ID})
	wantEqual(t, "epoch", r.e.lanes[0].epoch, 11)
}

// A settlement from before a failover has been carried out or never
// will be: it is neither sent again, in a history whose numbers mean something
// else, nor does what became of it say anything of the new history.
//
// Promises: O
func TestASettlementFromBeforeAFailoverIsForgotten(t *testing.T) {
	for name, answer := range map[string]error{"refused": store.ErrIdentity, "unknown": errTest, "carried out": nil} {
		r := newRig(t, port.Config{})
		r.lead(1)
		r.read(r.batch(0, "old", "a"))
		r.deliver()
		r.now += time.Second
		r.step(port.Tick{})
		s := take[port.Settle](r)
		g := lanes(1, store.ParkedView{})
		g.Identity = "promoted"
		r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
		r.read(r.batch(0, "new", "b"))
		r.deliver()
		r.step(port.Settled{ID: s.ID, Err: answer})
		wantEqual(t, name+": histories", len(factsOf[port.HistoryChanged](r)), 1)
		wantEqual(t, name+": lanes", len(r.e.held), 1)
		r.now += 1100 * time.Millisecond
		r.step(port.Tick{})
		again := take[port.Settle](r)
		wantEqual(t, name+": settled", string(again.Settlements[0].Position), "new")
		wantEqual(t, name+": epoch", again.Settlements[0].Epoch, 10)
		r.step(port.Settled{ID: again.ID})
		wantEqual(t, name+": epoch", r.e.lanes[0].epoch, 11)
	}
}

// A release that nobody answered may be carried out late, also after a failover:
// until the database has answered one, its lane is not worked on under that epoch.
//
// Promises: D
func TestAReleaseWithoutAnAnswerOutlivesAFailover(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(2)
	read := take[port.Read](r)
	r.now += time.Second
	r.step(port.Tick{})
	g := r.grant()
	g.Instances = 2
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
	l := take[port.Lease](r)
	wantEqual(t, "released", fmt.Sprint(l.Req.Release), "[{1 10}]")
	r.step(port.ReadDone{ID: read.ID, Err: store.ErrIdentity})
	again := take[port.Lease](r)
	wantEqual(t, "released again", fmt.Sprint(again.Req.Release), "[{1 10}]")
	r.step(port.Leased{ID: l.ID, Err: errTest})
	r.step(port.Leased{ID: again.ID, Err: errTest})
	r.pass(500 * time.Millisecond)
	wantEqual(t, "releases left", len(r.e.lease.releases), 0)

	r = newRig(t, port.Config{})
	r.lead(2)
	g.Lanes = lanes(2, store.ParkedView{}).Lanes
	r.now += time.Second
	r.step(port.Tick{})
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
	l = take[port.Lease](r)
	g.Identity, g.Instances = "promoted", 1
	r.step(port.Leased{ID: l.ID, Grant: g}) // this answer says that the release was carried out
	wantEqual(t, "releases left", len(r.e.lease.releases), 0)
	wantEqual(t, "lanes", fmt.Sprint(r.laneIDs()), "[0 1]")
}

func TestSurplusLanesAreFinishedSettledAndReleased(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(4)
	r.read(r.batch(3, "p1", "a"), r.batch(2, "p1", "b"))
	r.now += time.Second
	r.step(port.Tick{})
	g := r.grant()
	g.Instances = 2
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
	none[port.Lease](r)
	r.deliver()
	r.deliver()
	r.step(port.Settled{ID: take[port.Settle](r).ID}) // at once, each as soon as it is delivered
	l := take[port.Lease](r)
	wantEqual(t, "released", fmt.Sprint(l.Req.Release), "[{2 11}]")
	r.step(port.Settled{ID: take[port.Settle](r).ID})
	wantEqual(t, "to be released", len(r.e.lease.releases), 2)
	wantEqual(t, "kept", fmt.Sprint(r.laneIDs()), "[0 1]")
	r.step(port.Leased{ID: l.ID, Err: errTest})
	r.pass(500 * time.Millisecond)
	wantEqual(t, "an unanswered release is repeated and then done", len(r.e.lease.releases), 0)
}

func TestOnlyAtTheStartAWrongSchemaStops(t *testing.T) {
	r := newRig(t, port.Config{})
	r.step(port.Start{})
	r.step(port.Leased{ID: take[port.Lease](r).ID, Err: errTest})
	none[port.Stopped](r)
	r.now += time.Second
	r.step(port.Tick{})
	r.step(port.Leased{ID: take[port.Lease](r).ID, Err: &store.SchemaError{Want: 1}})
	if take[port.Stopped](r).Err == nil {
		t.Error("stopped without a reason")
	}

	r = newRig(t, port.Config{})
	r.lead(1)
	r.now += time.Second
	r.step(port.Tick{})
	r.step(port.Leased{ID: take[port.Lease](r).ID, Err: &store.SchemaError{Want: 1}})
	none[port.Stopped](r)
	wantEqual(t, "store health changes", len(factsOf[port.HealthChanged](r)), 1)
}

// Promises: G
func TestALaneThatIsHeldNeedsNoView(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(2, store.ParkedView{Captured: []string{"a"}, Records: 1}))
	r.read(r.batch(0, "p1", "a", "b"))
	wantEqual(t, "behind the captured key", fmt.Sprint(ids(r.deliver())), "[m2]")
	r.now += time.Second
	r.step(port.Tick{})
	l := take[port.Lease](r)
	wantEqual(t, "known", fmt.Sprint(l.Req.Known), "map[0:10 1:10]")
	g := lanes(2, store.ParkedView{})
	g.Lanes[0].Known = true
	g.Lanes[1].Epoch = 12 // another's meanwhile, and without a view: no store may say so
	g.Lanes[1].Known = true
	r.step(port.Leased{ID: l.ID, Grant: g})
	wantEqual(t, "held", fmt.Sprint(len(r.e.held), r.e.lanes[0].captured["a"].Head == captive.AnyHead), "1 true")
}

func TestWhatIsDueFollowsTheDatabasesClock(t *testing.T) {
	for name, tc := range map[string]struct {
		took, database time.Duration // of a heartbeat a minute later; by how much the database's clock is ahead then
		due            time.Duration // until it is due, an hour at first
	}{
		"in step":            {0, 0, 59 * time.Minute},
		"uncertain":          {time.Second, -time.Second, 59 * time.Minute},
		"hardly off":         {0, 50 * time.Millisecond, 59 * time.Minute},
		"we slept":           {0, 30 * time.Minute, 29 * time.Minute},
		"its clock set back": {0, -30 * time.Minute, 89 * time.Minute},
		"ahead for certain":  {time.Second, time.Minute, 58 * time.Minute},
		"behind for certain": {time.Second, -time.Minute, 59*time.Minute + 59*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, port.Config{TTL: 8 * time.Second})
			start := time.Unix(1e9, 0)
			g := lanes(1, store.ParkedView{HasDue: true, NextDue: time.Hour, Records: 1})
			g.Now = start
			r.leadWith(g)
			r.now += time.Minute
			r.step(port.Tick{})
			r.step(port.Leased{ID: take[port.Lease](r).ID, Err: errTest})
			sent := r.now
			r.now += 10 * time.Second
			r.step(port.Tick{})
			l := take[port.Lease](r)
			r.now += tc.took
			g.Now = start.Add(r.now - sent + time.Minute + tc.database)
			r.step(port.Leased{ID: l.ID, Grant: g})
			wantEqual(t, "due in", r.e.held[0].due-sent, tc.due)
		})
	}
}

// An outage of the store is reported once. Each further reason is reported once, when
// a person must act or after a minute. The same reason met by another call is not new.
func TestReasonsOfAStoreThatIsDown(t *testing.T) {
	refused := errors.New("connection refused")
	password := &store.UnusableError{What: "password authentication failed", Fix: "check the password"}
	ends := errors.New("terminating connection")
	r := newRig(t, port.Config{})
	r.lead(1)
	r.step(port.ReadDone{ID: take[port.Read](r).ID, Err: fmt.Errorf("read: dial 127.0.0.1:5432: %w", refused)})
	for i := 0; i < 12; i++ {
		r.now += 700 * time.Millisecond
		r.step(port.Tick{})
		err := fmt.Errorf("lease lanes: dial 127.0.0.1:%d: %w", 5432+i, refused)
		switch i % 3 {
		case 1:
			err = ends
		case 2:
			err = errors.Join(fmt.Errorf("lease lanes: %w", password))
		}
		if l, ok := maybe[port.Lease](r); ok {
			r.step(port.Leased{ID: l.ID, Err: err})
		}
		if rd, ok := maybe[port.Read](r); ok {
			r.step(port.ReadDone{ID: rd.ID, Err: err})
		}
	}
	if h := factsOf[port.HealthChanged](r); len(h) != 1 || h[0].Part != "store" || !h[0].Down {
		t.Errorf("health changes %+v", h)
	}
	if c := factsOf[port.ReasonChanged](r); len(c) != 1 || c[0].Part != "store" || !errors.Is(c[0].Err, password) {
		t.Errorf("changes of the reason %+v", c)
	}
}

// A failover is one outage: the lapse of the lease and the new history belong to
// it, and its end says how long it was. What could not be settled in the history
// before is not waited for.
func TestAFailoverIsOneOutage(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(r.batch(0, "p1", "a"))
	r.deliver()
	r.now += time.Second
	r.step(port.Tick{})
	r.step(port.Settled{ID: take[port.Settle](r).ID, Err: errTest})
	r.step(port.Leased{ID: take[port.Lease](r).ID, Err: errTest})
	down := r.now
	r.now += 20 * time.Second
	r.step(port.Tick{})
	wantEqual(t, "lapses", fmt.Sprint(len(factsOf[port.LeaseLapsed](r)), factsOf[port.LeaseLapsed](r)[0].Outage), "1 true")
	g := lanes(1, store.ParkedView{})
	g.Identity = "promoted"
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
	wantEqual(t, "histories", fmt.Sprint(factsOf[port.HistoryChanged](r)), fmt.Sprint([]port.HistoryChanged{{Lanes: 1, Outage: true}}))
	want := []port.HealthChanged{{Part: "store", Down: true, Err: errTest}, {Part: "store", After: r.now - down, NewHistory: true}}
	wantEqual(t, "health changes", fmt.Sprint(factsOf[port.HealthChanged](r)), fmt.Sprint(want))
}

// A heartbeat that is not answered until the lease has run out is the outage, and
// the lapse a part of it.
func TestAnUnansweredHeartbeatIsToldBeforeItsLapse(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.now += time.Second
	r.step(port.Tick{})
	l := take[port.Lease](r)
	r.now += time.Second
	r.step(port.Leased{ID: l.ID, Err: errTest})
	wantEqual(t, "lapses", fmt.Sprint(len(factsOf[port.LeaseLapsed](r)), factsOf[port.LeaseLapsed](r)[0].Outage), "1 true")
	wantEqual(t, "health changes", len(factsOf[port.HealthChanged](r)), 1)
}

// The lanes that alone may be taken are not given back for the share of others, who may not
// want them.
//
// Promises: S
func TestOnlyTheseLanesAreNotShared(t *testing.T) {
	g := lanes(3, store.ParkedView{})
	g.Total, g.Instances = 4, 2
	r := newRig(t, port.Config{Only: []store.Lane{0, 1, 2}})
	r.leadWith(g)
	r.others = 1
	r.pass(10 * time.Second)
	wantEqual(t, "lanes held", len(r.e.held), 3)
}
