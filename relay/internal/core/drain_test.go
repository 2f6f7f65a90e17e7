package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/port"
)

func TestDrainFinishesSettlesAndLeaves(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(2)
	b := r.batch(0, "p1", "a")
	b.More = true
	r.read(b)
	r.read(r.batch(0, "p2", "b"))
	d := take[port.Deliver](r)
	r.step(port.Drain{})
	none[port.Lease](r)
	none[port.Read](r)
	r.pass(5 * time.Second) // heartbeats continue, for the delivery that is out
	r.step(port.Delivered{ID: d.ID})
	none[port.Deliver](r) // what was not begun is left to the next owner
	s := take[port.Settle](r)
	wantEqual(t, "settled", string(s.Settlements[0].Position), "p1")
	r.step(port.Settled{ID: s.ID})
	l := take[port.Lease](r)
	wantEqual(t, "leave", l.Req.Leave, true)
	wantEqual(t, "released", fmt.Sprint(l.Req.Release), "[{0 11} {1 10}]")
	r.step(port.Leased{ID: l.ID})
	wantEqual(t, "reason", take[port.Stopped](r).Err, nil)
	if got := r.e.Step(r.now, port.Tick{}); len(got) != 0 {
		t.Errorf("actions after Stopped: %v", got)
	}
}

func TestWhileDrainingNoLaneIsTaken(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(r.batch(0, "p1", "a"))
	take[port.Deliver](r)
	r.step(port.Drain{})
	r.now += 700 * time.Millisecond
	r.step(port.Tick{})
	wantEqual(t, "observe", take[port.Lease](r).Req.Observe, true)
}

func TestADrainEndsAtItsDeadline(t *testing.T) {
	r := newRig(t, port.Config{DrainTimeout: 3 * time.Second})
	r.lead(1)
	r.read(r.batch(0, "p1", "a"))
	d := take[port.Deliver](r)
	r.step(port.Drain{})
	r.pass(3100 * time.Millisecond)
	wantEqual(t, "cancelled", take[port.Cancel](r).ID, d.ID)
	r.step(port.Delivered{ID: d.ID, Errs: []error{unknown}})
	none[port.Settle](r) // unknown stays unsettled
	l := take[port.Lease](r)
	wantEqual(t, "leave", l.Req.Leave, true)
	r.step(port.Leased{ID: l.ID, Err: errTest})
	take[port.Stopped](r)
}

func TestADrainDoesNotWaitForADeadStoreOrAHungSink(t *testing.T) {
	r := newRig(t, port.Config{DrainTimeout: 3 * time.Second})
	r.lead(1)
	r.read(r.batch(0, "p1", "a"))
	r.deliver()
	r.step(port.Drain{})
	for range 100 {
		r.now += 50 * time.Millisecond
		r.step(port.Tick{})
		if s, ok := maybe[port.Settle](r); ok {
			r.step(port.Settled{ID: s.ID, Err: errTest})
		}
		if l, ok := maybe[port.Lease](r); ok && r.now%3 == 0 {
			r.step(port.Leased{ID: l.ID, Err: errTest})
		}
		if s, ok := maybe[port.Stopped](r); ok {
			wantEqual(t, "reason", s.Err, nil)
			return
		}
	}
	t.Fatal("the drain hangs")
}

// A drain that could not settle anything any more is over before its time is, and
// says what it leaves; a database that is back by then is waited for.
func TestADrainGivesUpADatabaseThatIsGone(t *testing.T) {
	for _, back := range []bool{false, true} {
		r := newRig(t, port.Config{DrainTimeout: time.Minute})
		r.lead(1)
		r.read(r.batch(0, "p1", "a", "b"))
		r.deliver()
		r.step(port.Drain{})
		var settle *port.Settle
		from := r.now
		for r.now < from+30*time.Second {
			r.now += 50 * time.Millisecond
			r.step(port.Tick{})
			up := back && r.now > from+3*time.Second
			if s, ok := maybe[port.Settle](r); ok {
				settle = &s
			}
			if settle != nil {
				ev := port.Settled{ID: settle.ID, Err: errTest}
				if up {
					ev.Err = nil
				}
				settle = nil
				r.step(ev)
			}
			if l, ok := maybe[port.Lease](r); ok {
				ev := port.Leased{ID: l.ID, Err: errTest}
				if up {
					ev = port.Leased{ID: l.ID, Grant: r.grant()}
				}
				r.step(ev)
			}
			if _, ok := maybe[port.Stopped](r); ok {
				break
			}
		}
		left := factsOf[port.DrainCutOff](r)
		if back && len(left) != 0 || !back && (len(left) != 1 || left[0].Messages != 2) {
			t.Errorf("back %v: told %v", back, left)
		}
		// The lease and another one, and a moment for a last try.
		if took := r.now - from; took > 2*r.e.cfg.TTL+time.Second {
			t.Errorf("back %v: the drain took %v", back, took)
		}
	}
}

func TestADrainInAnOutageDoesNotWait(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(r.batch(0, "p1", "a"))
	r.deliver(outage)
	r.step(port.Drain{})
	wantEqual(t, "leave", take[port.Lease](r).Req.Leave, true)
}

// What a destination that is down holds back of a batch is set aside,
// so that what was acknowledged of it is settled and not sent again.
//
// Promises: D
func TestADrainSettlesABatchThatIsHeldBack(t *testing.T) {
	slow := broker.Throttled(errTest, "slow", "orders", time.Minute)
	r := newRig(t, port.Config{ParkedKeys: 1})
	r.lead(1)
	r.read(r.batch(0, "p1", "a", "", "b", "b", "c"))
	r.deliver(slow, nil, slow, errNotTried, nil)
	none[port.Settle](r)
	r.step(port.Drain{})
	s := take[port.Settle](r)
	wantEqual(t, "delivered", s.Settlements[0].Delivered, 2)
	wantEqual(t, "parked", drawn(s.Settlements[0].Park), "m1 retry captures, m3 retry captures, m4 waiting")
	wantEqual(t, "settled", string(s.Settlements[0].Position), "p1")
	r.step(port.Settled{ID: s.ID})
	wantEqual(t, "leave", take[port.Lease](r).Req.Leave, true)
	wantEqual(t, "cut off", len(factsOf[port.DrainCutOff](r)), 0)
}

// What a call that the deadline of a drain cut off has delivered is settled too.
//
// Promises: D
func TestADrainSettlesWhatItsDeadlineCutOff(t *testing.T) {
	r := newRig(t, port.Config{DrainTimeout: 3 * time.Second})
	r.lead(1)
	r.read(r.batch(0, "p1", "a", "", "a"))
	d := take[port.Deliver](r)
	r.step(port.Drain{})
	r.pass(3100 * time.Millisecond)
	take[port.Cancel](r)
	r.step(port.Delivered{ID: d.ID, Errs: []error{unknown, nil, errNotTried}})
	s := take[port.Settle](r)
	wantEqual(t, "delivered", s.Settlements[0].Delivered, 1)
	wantEqual(t, "parked", drawn(s.Settlements[0].Park), "m1 retry captures, m3 waiting")
}

// A drain that cannot settle such a batch any more says so.
func TestADrainTellsOfAHeldBatchThatItCannotSettle(t *testing.T) {
	r := newRig(t, port.Config{ParkedKeys: 1})
	r.lead(1)
	r.read(r.batch(0, "p1", "a", "", "b"))
	slow := broker.Throttled(errTest, "slow", "orders", time.Minute)
	r.deliver(slow, nil, slow)
	r.now += 3 * time.Second // the lease has run out
	r.step(port.Drain{})
	none[port.Settle](r)
	for range 500 {
		r.now += 50 * time.Millisecond
		r.step(port.Tick{})
		if l, ok := maybe[port.Lease](r); ok {
			r.step(port.Leased{ID: l.ID, Err: errTest})
		}
	}
	take[port.Stopped](r)
	wantEqual(t, "cut off", fmt.Sprint(factsOf[port.DrainCutOff](r)), "[{1}]")
}

func TestADrainBeforeTheFirstLeaseStops(t *testing.T) {
	r := newRig(t, port.Config{})
	r.step(port.Start{})
	l := take[port.Lease](r)
	r.step(port.Drain{})
	r.step(port.Leased{ID: l.ID, Err: errTest})
	take[port.Stopped](r)
}
