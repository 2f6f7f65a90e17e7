package core

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider/relay/internal/health"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// storeHealth returns the changes of the store's health that were reported.
func (r *rig) storeHealth() (down, up []port.HealthChanged) {
	for _, f := range factsOf[port.HealthChanged](r) {
		if f.Part == "store" && f.Down {
			down = append(down, f)
		} else if f.Part == "store" {
			up = append(up, f)
		}
	}
	return down, up
}

func (r *rig) wantHealth(what string, down, up int) {
	r.t.Helper()
	d, u := r.storeHealth()
	if len(d) != down || len(u) != up {
		r.t.Errorf("%s: %d outages began and %d ended, want %d and %d", what, len(d), len(u), down, up)
	}
}

// poll answers the next Read of an idle lane.
func (r *rig) poll(err error) {
	r.t.Helper()
	r.untimed()
	for range 1000 {
		r.pass(10 * time.Millisecond)
		if w, ok := maybe[port.Wait](r); ok {
			r.step(port.Woke{ID: w.ID})
		}
		if rd, ok := maybe[port.Read](r); ok {
			r.step(port.ReadDone{ID: rd.ID, Err: err})
			return
		}
	}
	r.t.Fatal("nothing is read")
}

// polls answers Reads for so long, all with one error or none.
func (r *rig) polls(d time.Duration, err error) {
	r.t.Helper()
	for end := r.now + d; r.now < end; {
		r.poll(err)
	}
}

// untimed forgets the timers that were asked for.
func (r *rig) untimed() {
	r.acts = slices.DeleteFunc(r.acts, func(a port.Action) bool {
		_, timer := a.(port.Timer)
		return timer
	})
}

// dead lets time go by while every call to the store fails.
func (r *rig) dead(d time.Duration) {
	r.t.Helper()
	for end := r.now + d; r.now < end; {
		r.now += 10 * time.Millisecond
		r.step(port.Tick{})
		if l, ok := maybe[port.Lease](r); ok {
			r.step(port.Leased{ID: l.ID, Err: errTest})
		}
		if rd, ok := maybe[port.Read](r); ok {
			r.step(port.ReadDone{ID: rd.ID, Err: errTest})
		}
	}
}

// TestAStoreThatFailsNowAndThenIsOneOutage: some calls of a role at its connection
// limit fail, the others work.
func TestAStoreThatFailsNowAndThenIsOneOutage(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.poll(nil)
	for end := r.now + 3*time.Minute; r.now < end; {
		r.poll(errTest)
		r.poll(nil)
		r.wantHealth("during the outage", 1, 0)
	}
	last := r.now
	r.polls(health.PartCalm-200*time.Millisecond, nil)
	r.wantHealth("shortly after it", 1, 0)
	r.polls(time.Second, nil)
	r.wantHealth("after it", 1, 1)
	if _, up := r.storeHealth(); len(up) == 1 && (up[0].After-3*time.Minute).Abs() > time.Second {
		t.Errorf("the outage took %v, want three minutes; the last failure was %v ago", up[0].After, r.now-last)
	}
}

// A failure every seven seconds is an outage of its own a few times only.
func TestOutagesThatComeAgainAndAgainAreReportedAFewTimes(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.poll(nil)
	for range 60 {
		r.poll(errTest)
		r.polls(7*time.Second, nil)
	}
	if down, up := r.storeHealth(); len(down) > health.RelapsesMost+3 || len(up) != len(down)-1 {
		t.Errorf("%d outages began and %d ended", len(down), len(up))
	}
	r.polls(health.CalmMost, nil)
	if down, up := r.storeHealth(); len(up) != len(down) {
		t.Errorf("%d outages began and %d ended after a minute without a failure", len(down), len(up))
	}
	before, _ := r.storeHealth()
	r.polls(health.RelapseWithin, nil)
	r.poll(errTest)
	r.polls(2*health.Calm, nil)
	r.wantHealth("an outage much later", len(before)+1, len(before)+1)
}

// Probes see each failure, and a second later a store that recovered, however often
// that happens: the log alone has one outage.
func TestProbesFollowAStoreThatComesAndGoes(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.poll(nil)
	works := func() bool {
		all := factsOf[port.StoreAnswers](r)
		return len(all) == 0 || all[len(all)-1].Works
	}
	for n := range 30 {
		r.poll(errTest)
		if f := factsOf[port.StoreAnswers](r); works() || !errors.Is(f[len(f)-1].Err, errTest) {
			t.Fatalf("after failure %d probes see a store that works", n+1)
		}
		r.polls(health.Calm+100*time.Millisecond, nil)
		if !works() {
			t.Fatalf("%v after failure %d probes see a store that fails", health.Calm+100*time.Millisecond, n+1)
		}
		r.polls(5*time.Second, nil)
	}
	if down, _ := r.storeHealth(); len(down) > health.RelapsesMost+3 {
		t.Errorf("%d outages are reported", len(down))
	}
	r.dead(5 * time.Second)
	if works() {
		t.Error("probes see a store that works in an outage")
	}
}

func TestAnOutageOfTheWholeStoreEndsAtOnce(t *testing.T) {
	for name, test := range map[string]struct{ length, most time.Duration }{
		"two seconds": {2 * time.Second, 0},
		"an instant":  {100 * time.Millisecond, health.Calm},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, port.Config{})
			r.lead(1)
			r.poll(nil)
			for n := range 2 { // a second one soon afterwards is no other case
				r.wantHealth("before the outage", n, n)
				r.poll(errTest)
				r.wantHealth("after the first failure", n+1, n)
				r.dead(test.length)
				r.wantHealth("during the outage", n+1, n)
				r.now += 5 * time.Second // past every pause
				r.step(port.Tick{})
				l, asked := maybe[port.Lease](r)
				if !asked {
					t.Fatal("no lease is asked for")
				}
				r.step(port.Leased{ID: l.ID, Grant: r.grant()})
				r.poll(nil)
				r.polls(test.most, nil)
				r.wantHealth("as soon as all calls work", n+1, n+1)
			}
		})
	}
}

// A call on a connection that a failover left may end long after newer calls have worked.
func TestACallFromBeforeTheEndOfAnOutageBeginsNoOther(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(2)
	stuck := take[port.Read](r)
	r.dead(3 * time.Second)
	r.wantHealth("during the outage", 1, 0)
	r.now += 5 * time.Second
	r.step(port.Tick{})
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: r.grant()})
	r.wantHealth("after it", 1, 1)
	r.step(port.ReadDone{ID: stuck.ID, Err: errTest})
	r.wantHealth("after the old call", 1, 1)
}

// The lanes whose parked records could not be read may move to another instance, or
// the pipe be paused by a person: no other read will clear the fault.
func TestAReadThatNobodyWantsAnyMoreIsNoFault(t *testing.T) {
	due := captured("a")
	due.HasDue = true
	for name, test := range map[string]struct {
		parked bool
		after  func(r *rig) store.Grant
	}{
		"the parked lanes have moved away": {true, func(r *rig) store.Grant {
			g := r.grant()
			g.Lanes = g.Lanes[1:]
			return g
		}},
		"all lanes have moved away": {false, func(r *rig) store.Grant {
			g := r.grant()
			g.Lanes = nil
			return g
		}},
		"the pipe is paused": {false, func(r *rig) store.Grant {
			g := r.grant()
			g.Paused = true
			return g
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, port.Config{})
			g := lanes(2, store.ParkedView{})
			if test.parked {
				g.Lanes[0].Parked = due
			}
			r.leadWith(g)
			if test.parked {
				r.step(port.ReadDone{ID: r.parkedRead().ID, Err: errTest})
			} else {
				r.poll(errTest)
			}
			r.wantHealth("after the failure", 1, 0)
			grant, granted := test.after(r), false
			for end := r.now + time.Minute; r.now < end; {
				r.now += 10 * time.Millisecond
				r.step(port.Tick{})
				if l, ok := maybe[port.Lease](r); ok {
					r.step(port.Leased{ID: l.ID, Grant: grant})
					granted = true
				}
				if w, ok := maybe[port.Wait](r); ok {
					r.step(port.Woke{ID: w.ID})
				}
				if rd, ok := maybe[port.Read](r); ok && rd.Reads[0].Parked {
					wantEqual(t, "granted to another instance, and read", granted, false)
					r.step(port.ReadDone{ID: rd.ID, Err: errTest})
				} else if ok {
					r.step(port.ReadDone{ID: rd.ID})
				}
			}
			r.wantHealth("a minute later", 1, 1)
		})
	}
}

// The pauses between reads grow during an outage of the store. A lease that has recovered
// ends them: what was committed meanwhile is sent at once, and /readyz does not lag.
//
// Promises: S
func TestAStoreThatIsBackIsReadAtOnce(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	for n := 0; !r.e.health.Faulty(health.Lease) || r.e.readHold.until < r.e.lease.nextAt+50*time.Millisecond; n++ {
		if n == 1000 {
			t.Fatal("no pause between reads is longer than that between leases")
		}
		r.dead(10 * time.Millisecond)
	}
	for r.e.lease.op == 0 {
		r.now += time.Millisecond
		r.step(port.Tick{})
	}
	none[port.Read](r)
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: r.grant()})
	take[port.Read](r)
}

// An act of a person does not wait for what is due where that cannot be read: the act may remove it.
//
// Promises: C, S
func TestActsDoNotWaitForAReadThatFails(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(1, store.ParkedView{HasDue: true, Records: 1}))
	r.requests = []store.Request{{ID: 7, Act: store.Act{Kind: store.ActDiscard, Seq: 1}}}
	for end := r.now + time.Minute; r.now < end; r.pass(10 * time.Millisecond) {
		r.untimed()
		if rd, ok := maybe[port.Read](r); ok {
			r.step(port.ReadDone{ID: rd.ID, Err: errTest})
		}
		if s, ok := maybe[port.Settle](r); ok {
			wantEqual(t, "requests", fmt.Sprint(s.Settlements[0].Requests), "[7]")
			return
		}
	}
	t.Error("the act was not executed within a minute of failing reads")
}
