package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// rest lets time go by while the store has nothing, and answers every call with err.
func (r *rig) rest(d time.Duration, err error) {
	r.t.Helper()
	for end := r.now + d; r.now < end; {
		r.pass(100 * time.Millisecond)
		if d, ok := maybe[port.Deliver](r); ok {
			r.step(port.Delivered{ID: d.ID, Errs: []error{err}})
		}
		if rd, ok := maybe[port.Read](r); ok {
			r.step(port.ReadDone{ID: rd.ID})
		}
		if w, ok := maybe[port.Wait](r); ok {
			r.step(port.Woke{ID: w.ID})
		}
		if s, ok := maybe[port.Settle](r); ok {
			r.step(port.Settled{ID: s.ID})
		}
		for ok := true; ok; {
			_, ok = maybe[port.Timer](r)
		}
	}
}

// moveAway gives the first lane to another instance with the next heartbeat.
func (r *rig) moveAway() {
	r.t.Helper()
	for {
		r.now += 10 * time.Millisecond
		r.step(port.Tick{})
		if l, ok := maybe[port.Lease](r); ok {
			g := r.grant()
			g.Lanes = g.Lanes[1:]
			r.step(port.Leased{ID: l.ID, Grant: g})
			return
		}
	}
}

func (r *rig) wantDown(when, part string, want ...bool) {
	r.t.Helper()
	var got []bool
	for _, f := range factsOf[port.HealthChanged](r) {
		if f.Part == part {
			got = append(got, f.Down)
		}
	}
	wantEqual(r.t, part+" "+when, fmt.Sprint(got), fmt.Sprint(want))
}

// wantUntried checks that nobody is told that the part works: it was not tried.
func (r *rig) wantUntried(part string) {
	r.t.Helper()
	for _, f := range factsOf[port.HealthChanged](r) {
		if f.Part == part && !f.Down {
			wantEqual(r.t, part+" was not tried", f.Untried, true)
		}
	}
}

// A destination, or the sink, is down no more once nothing here waits for it: its lane has
// moved to another instance, which alone sees the acknowledgement.
//
// Promises: S, G
func TestADestinationThatNoCallTriesIsForgotten(t *testing.T) {
	for part, err := range map[string]error{
		"destination hook": broker.Outage(errTest, "o1", "hook"),
		"sink":             outage,
	} {
		t.Run(part, func(t *testing.T) {
			r := newRig(t, port.Config{})
			r.lead(2)
			r.read(r.batch(0, "p1", "a"))
			r.deliver(err)
			r.rest(10*time.Minute, err)
			r.wantDown("while a message waits", part, true)
			r.moveAway()
			r.rest(5*time.Minute, errNotTried)
			r.wantDown("when it has gone", part, true, false)
			r.wantUntried(part)
			wantEqual(t, "scopes and topics", len(r.e.scopes)+len(r.e.dests), 0)
		})
	}
}

// A sink that answered nothing is down no more once nothing here waits for it, either.
//
// Promises: S
func TestASilentSinkThatNoCallTriesIsForgotten(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(2)
	r.read(r.batch(0, "p1", "a"))
	r.deliver(unknown)
	r.rest(10*time.Minute, unknown)
	r.wantDown("while a message waits", "sink", true)
	r.moveAway()
	r.rest(5*time.Minute, errNotTried)
	r.wantDown("when it has gone", "sink", true, false)
	r.wantUntried("sink")
}

// A brake that is forgotten holds again at the first rejection: no message more dies.
//
// Promises: S
func TestAForgottenBrakeHoldsAgainAtOnce(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(2)
	r.read(r.batch(0, "p1", keys(21)...))
	errs := make([]error, 21)
	for i := range errs {
		errs[i] = rejected
	}
	r.deliver(errs...)
	r.moveAway()
	r.rest(5*time.Minute, errNotTried)
	b := factsOf[port.BrakeChanged](r)
	if len(b) != 2 || !b[0].On || b[1].On {
		t.Fatalf("brake %+v", b)
	}
	r.rest(time.Second, errNotTried)
	if w, ok := maybe[port.Wait](r); ok {
		r.step(port.Woke{ID: w.ID})
	}
	r.read(r.batch(1, "q1", "z"))
	r.deliver(rejected)
	dead := 0
	for _, f := range factsOf[port.RecordParked](r) {
		if f.State == store.Dead {
			dead++
		}
	}
	wantEqual(t, "dead letters", dead, 20)
	wantEqual(t, "brakes", len(factsOf[port.BrakeChanged](r)), 3)
}

// While nothing can be tried no scope is forgotten: the pipe is paused, or the lease has
// lapsed.
//
// Promises: S
func TestAScopeThatCannotBeTriedStays(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(r.batch(0, "p1", "a"))
	r.deliver(errOrdersOut)
	for range 6000 { // ten minutes in which every heartbeat fails
		r.now += 100 * time.Millisecond
		r.step(port.Tick{})
		if l, ok := maybe[port.Lease](r); ok {
			r.step(port.Leased{ID: l.ID, Err: errTest})
		}
	}
	r.wantDown("without a lease", "destination orders", true)
	r.rest(time.Minute, errOrdersOut)
	r.wantDown("a minute after it is back", "destination orders", true)
}
