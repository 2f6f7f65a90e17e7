package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// silence steps an engine whose lane has one message for a queue that confirms
// nothing and, time and again, messages for one that works. It returns the parks
// of the silent one, in order, until enough says stop.
func silence(t *testing.T, cfg port.Config, works string, enough func(parks []store.Park) bool) []store.Park {
	t.Helper()
	r := newRig(t, cfg)
	r.lead(1)
	var parks []store.Park
	record := r.batch(0, "p1", "a@silent", "b")
	silent := record.Messages[0].ID
	next := &record
	for range 4000 {
		r.pass(50 * time.Millisecond)
		if rd, ok := maybe[port.Read](r); ok {
			switch {
			case rd.Reads[0].Parked && len(parks) > 0:
				again := store.Batch{Lane: 0, Parked: captured("a"), Messages: record.Messages[:1], Meta: record.Meta[:1]}
				again.Meta[0].State, again.Meta[0].Attempts = store.Retry, parks[len(parks)-1].Attempts
				r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{again}})
			case rd.Reads[0].Parked:
				r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{{Lane: 0}}})
			case next != nil:
				r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{*next}})
				next = nil
			default:
				r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{r.batch(0, fmt.Sprint("p", r.seq), "c@"+works)}})
			}
		}
		if w, ok := maybe[port.Wait](r); ok {
			r.step(port.Woke{ID: w.ID})
		}
		if d, ok := maybe[port.Deliver](r); ok {
			errs := make([]error, len(d.Msgs))
			for i, m := range d.Msgs {
				if m.ID == silent {
					errs[i] = unknown
				}
			}
			r.step(port.Delivered{ID: d.ID, Errs: errs})
		}
		if s, ok := maybe[port.Settle](r); ok {
			for _, st := range s.Settlements {
				parks = append(parks, st.Park...)
			}
			r.step(port.Settled{ID: s.ID})
		}
		if enough(parks) {
			return parks
		}
	}
	t.Fatalf("after so long the message was parked as %s", drawn(parks))
	return nil
}

// A queue that confirms nothing while others of the pipe do uses up no attempt:
// what is sent to it steps aside, later each time.
//
// Promises: S
func TestASilentDestinationBurnsNoAttempt(t *testing.T) {
	parks := silence(t, port.Config{Retry: port.Backoff{Jitter: -1}}, "works", func(parks []store.Park) bool { return len(parks) == 6 })
	for i, p := range parks {
		if p.State != store.Retry || p.Attempts != 0 {
			t.Errorf("park %d: %s", i, drawn(parks[i:i+1]))
		}
	}
	if first, last := parks[0].DueIn, parks[5].DueIn; last < 8*first {
		t.Errorf("due in %v at first and in %v the sixth time", first, last)
	}
}

// Once others are acknowledged at the same destination, the message is to blame.
func TestAMessageIsToBlameWhereOthersAreAcknowledged(t *testing.T) {
	parks := silence(t, port.Config{Retry: port.Backoff{MaxAttempts: 2}}, "silent", func(parks []store.Park) bool {
		return len(parks) > 0 && parks[len(parks)-1].State == store.Dead
	})
	if last := parks[len(parks)-1]; last.Attempts != 2 {
		t.Errorf("parked as %s", drawn(parks))
	}
}

// A destination that recovers while a message is on its way acknowledges what was
// sent after it. That does not prove the message guilty: it met the outage.
//
// Promises: S
func TestARecoveryDuringACallBurnsNoAttempt(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(2)
	first, other := r.batch(0, "p1", "a"), r.batch(1, "q1", "b")
	r.read(first)
	var sent port.Deliver // of the other lane, after the message had gone alone for the first time
	for range 600 {
		r.pass(100 * time.Millisecond)
		d, ok := maybe[port.Deliver](r)
		switch b := r.e.lanes[0].queue[0]; {
		case !ok:
			continue
		case b.alone == nil:
		case sent.ID == 0:
			r.now += time.Millisecond
			r.step(port.Woke{ID: take[port.Wait](r).ID})
			r.read(other)
			sent = take[port.Deliver](r)
		default:
			r.step(port.Delivered{ID: sent.ID}) // it was acknowledged before the message was not
			r.step(port.Delivered{ID: d.ID, Errs: []error{unknown}})
			for _, f := range factsOf[port.RecordParked](r) {
				if f.Attempts != 0 {
					t.Errorf("parked with %d attempts", f.Attempts)
				}
			}
			return
		}
		r.step(port.Delivered{ID: d.ID, Errs: []error{unknown}})
	}
	t.Fatal("the message was never sent alone twice")
}

// An outage that is over says nothing of a message: the silence behind it is the
// first that the message met, though others were acknowledged between the two.
//
// Promises: S
func TestASilenceBehindAnOutageBurnsNoAttempt(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(2)
	due := captured("a")
	due.HasDue = true
	parked := r.parkedBatch(due, store.Retry, 1, "a")
	g := lanes(2, store.ParkedView{})
	g.Lanes[0].Parked, g.Lanes[0].Epoch = due, 20
	r.now += time.Second
	r.step(port.Tick{})
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
	answers := []error{errOrdersOut, errOrdersOut, nil}
	unknowns := 0
	for range 4000 {
		r.pass(10 * time.Millisecond)
		for rd, ok := maybe[port.Read](r); ok; rd, ok = maybe[port.Read](r) {
			ev := port.ReadDone{ID: rd.ID}
			for _, lr := range rd.Reads {
				switch {
				case lr.Parked && lr.Lane == 0:
					ev.Batches = append(ev.Batches, parked)
				case lr.Lane == 1 && unknowns == 0:
					ev.Batches = append(ev.Batches, r.batch(1, fmt.Sprint("q", r.seq), "b"))
				}
			}
			r.step(ev)
		}
		if w, ok := maybe[port.Wait](r); ok {
			r.step(port.Woke{ID: w.ID})
		}
		for d, ok := maybe[port.Deliver](r); ok; d, ok = maybe[port.Deliver](r) {
			switch {
			case d.Lane == 1 && len(answers) == 3: // down, like everything there
				r.step(port.Delivered{ID: d.ID, Errs: []error{errOrdersOut}})
			case d.Lane == 1:
				r.step(port.Delivered{ID: d.ID})
			case len(answers) > 1:
				r.step(port.Delivered{ID: d.ID, Errs: answers[:1]})
				answers = answers[1:]
			default:
				unknowns++
				r.step(port.Delivered{ID: d.ID, Errs: []error{unknown}})
			}
		}
		if s, ok := maybe[port.Settle](r); ok {
			r.step(port.Settled{ID: s.ID})
		}
		for _, f := range factsOf[port.RecordParked](r) {
			if f.Lane == 0 && f.Attempts != 1 {
				t.Fatalf("parked with %d attempts after %d calls without an answer", f.Attempts, unknowns)
			}
			if f.Lane == 0 && f.Class == "unknown" {
				return
			}
		}
	}
	t.Fatalf("after %d calls without an answer the message was not parked", unknowns)
}
