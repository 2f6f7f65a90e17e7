package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// renew answers the next heartbeat, and says whether the pipe is paused.
func (r *rig) renew(paused bool, requests ...store.Request) {
	r.t.Helper()
	for range 200 {
		if l, ok := maybe[port.Lease](r); ok {
			g := r.grant(requests...)
			g.Paused = paused
			r.step(port.Leased{ID: l.ID, Grant: g})
			return
		}
		r.now += 10 * time.Millisecond
		r.step(port.Tick{})
	}
	r.t.Fatal("no heartbeat")
}

// A pause finishes and settles what was begun, drops the rest, keeps the lanes,
// and the pipe continues with the very next message.
func TestPauseFinishesWhatWasBegun(t *testing.T) {
	r := newRig(t, port.Config{Page: 2})
	r.lead(1)
	first := r.batch(0, "p1", "a", "b")
	first.More = true
	r.read(first)
	ahead := r.batch(0, "p2", "c", "d")
	ahead.More = true
	r.read(ahead) // read ahead of the delivery
	late := take[port.Read](r)
	r.renew(true)
	r.step(port.ReadDone{ID: late.ID, Batches: []store.Batch{r.batch(0, "p3", "e")}})
	wantEqual(t, "sent at the pause", fmt.Sprint(ids(r.deliver())), "[m1 m2]")
	none[port.Deliver](r)
	none[port.Read](r)
	var st store.Settlement
	for range 20 {
		r.renew(true)
		if s, ok := maybe[port.Settle](r); ok {
			st = s.Settlements[0]
			r.step(port.Settled{ID: s.ID})
		}
	}
	wantEqual(t, "settled in the pause", fmt.Sprint(st.Delivered, " ", string(st.Position)), "2 p1")
	none[port.Deliver](r)
	none[port.Read](r)
	none[port.Wait](r)
	wantEqual(t, "lanes held", fmt.Sprint(r.laneIDs()), "[0]")
	wantEqual(t, "bytes held", r.e.msgs, 0)
	r.renew(true, store.Request{ID: 7, Lane: 0})
	if s := take[port.Settle](r); len(s.Settlements[0].Requests) != 1 {
		t.Errorf("an act in the pause: %+v", s)
	} else {
		r.step(port.Settled{ID: s.ID})
	}
	r.renew(false)
	wantEqual(t, "reads on after", string(take[port.Read](r).Reads[0].After), "")
	wantEqual(t, "facts", fmt.Sprint(factsOf[port.PipePaused](r)), "[{true} {false}]")
}

// A batch of which a part was acknowledged is finished in the pause: what is left
// of it would be a duplicate without a fault.
func TestPauseFinishesAHalfDeliveredBatch(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(r.batch(0, "p1", "a", "b"))
	d := take[port.Deliver](r)
	r.renew(true)
	r.step(port.Delivered{ID: d.ID, Errs: []error{nil, unknown}})
	r.renew(true)
	wantEqual(t, "sent again", fmt.Sprint(ids(take[port.Deliver](r))), "[m2]")
}

// A lane that is won in a pause is not read.
func TestPauseHoldsNewLanes(t *testing.T) {
	r := newRig(t, port.Config{})
	g := lanes(2, store.ParkedView{HasDue: true})
	g.Paused = true
	r.leadWith(g)
	none[port.Read](r)
	none[port.Wait](r)
	r.renew(false)
	wantEqual(t, "lanes read", len(take[port.Read](r).Reads), 2)
}

// A removed pipe ends the engine at once, also in the middle of a run.
func TestRemovedPipeEndsTheEngine(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	for range 200 {
		l, ok := maybe[port.Lease](r)
		if !ok {
			r.now += 10 * time.Millisecond
			r.step(port.Tick{})
			continue
		}
		r.step(port.Leased{ID: l.ID, Err: fmt.Errorf("lease: %w", store.ErrNoPipe)})
		wantEqual(t, "why it stopped", take[port.Stopped](r).Err.Error(), "store : lease: no such pipe")
		return
	}
	t.Fatal("no heartbeat")
}

// Parked records that a pause drops unsent are looked for again: the
// database does not say a second time that they are due.
//
// Promises: S
func TestParkedRecordsThatAPauseDropsAreReadAgain(t *testing.T) {
	r := newRig(t, port.Config{})
	due := store.ParkedView{HasDue: true, Records: 1}
	r.leadWith(lanes(1, due))
	read := take[port.Read](r)
	r.e.trip(r.e.scope(""), &call{}, broker.Classify(broker.Outage(errTest, "", ""))) // the sink is held: nothing is sent
	r.e.scopes[""].pause.until = r.now + 3*time.Second
	rest := store.ParkedView{Records: 1}
	b := r.parkedBatch(rest, store.Retry, 0, "")
	r.step(port.ReadDone{ID: read.ID, Batches: []store.Batch{b}})
	r.renew(true)
	none[port.Deliver](r)
	r.renew(false)
	for range 100 {
		r.pass(100 * time.Millisecond)
		if rd, ok := maybe[port.Read](r); ok {
			if rd.Reads[0].Parked {
				return
			}
			r.step(port.ReadDone{ID: rd.ID})
		}
	}
	t.Fatal("the record is never read again")
}
