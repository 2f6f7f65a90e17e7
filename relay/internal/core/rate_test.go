package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// Over all lanes an instance sends no more than its rate, a page more at the most, and
// not much less; every lane has its turn.
//
// Promises: G, S
func TestRate(t *testing.T) { testRate(t, false) }

// A destination that is down takes no lane's turn.
//
// Promises: S
func TestRateBesideADestinationThatIsDown(t *testing.T) { testRate(t, true) }

func testRate(t *testing.T, outage bool) {
	t.Helper()
	for _, rate := range []float64{0.5, 7, 200, 3000} {
		const n, seconds = 4, 40
		r := newRig(t, port.Config{Rate: rate})
		r.lead(n)
		if outage {
			r.e.scope("nowhere").open = true
		}
		sent, turns := 0, map[store.Lane]int{}
		count := func(d port.Deliver) {
			sent += len(d.Msgs)
			turns[d.Lane] += len(d.Msgs)
		}
		for range seconds * 100 {
			r.serveFull(count, func(port.Settle) {})
			r.pass(10 * time.Millisecond)
		}
		most := rate*seconds + max(rate/10, 1)
		if float64(sent) > most+1 || float64(sent) < 0.9*rate*seconds {
			t.Errorf("rate %g: %d messages in %d s, want about %g", rate, sent, seconds, rate*seconds)
		}
		if least := slices.Min([]int{turns[0], turns[1], turns[2], turns[3]}); least < sent/(2*n) {
			t.Errorf("rate %g: the lanes sent %v", rate, turns)
		}
	}
}

// serveFull answers until nothing is asked for: lanes are never read to their end.
func (r *rig) serveFull(sent func(port.Deliver), settled func(port.Settle)) {
	r.t.Helper()
	for moved := true; moved; {
		moved = false
		if rd, ok := maybe[port.Read](r); ok {
			var found []store.Batch
			for _, l := range rd.Reads {
				if l.Parked {
					found = append(found, store.Batch{Lane: l.Lane})
					continue
				}
				r.seq++
				b := r.batch(l.Lane, string(l.After)+"+", keys(l.MaxRecords)...)
				b.More = true
				found = append(found, b)
			}
			r.step(port.ReadDone{ID: rd.ID, Batches: found})
			moved = true
		}
		if d, ok := maybe[port.Deliver](r); ok {
			sent(d)
			r.step(port.Delivered{ID: d.ID})
			moved = true
		}
		if s, ok := maybe[port.Settle](r); ok {
			settled(s)
			r.step(port.Settled{ID: s.ID})
			moved = true
		}
	}
}

// Under a low rate an act of a person does not wait until a window was sent.
//
// Promises: S
func TestActsUnderARate(t *testing.T) {
	const n, turn = 16, 4 * time.Second
	r := newRig(t, port.Config{Rate: n / turn.Seconds()})
	r.lead(n)
	l, executed := r.e.lanes[3], false
	serve := func(d time.Duration) {
		for end := r.now + d; r.now < end && !executed; r.pass(10 * time.Millisecond) {
			r.serveFull(func(port.Deliver) {}, func(s port.Settle) {
				for _, x := range s.Settlements {
					executed = executed || slices.Contains(x.Requests, 7)
				}
			})
		}
	}
	serve(time.Minute)
	r.requests = []store.Request{{ID: 7, Lane: l.id, Act: store.Act{Kind: store.ActPause}}}
	if serve(4 * turn); !executed {
		t.Errorf("an act was not executed within four turns of its lane, which holds %d messages", l.msgs)
	}
}

// One lane with messages has the whole rate, however many others the instance holds.
//
// Promises: S
func TestRateOfOneLane(t *testing.T) {
	const seconds = 40
	for _, rate := range []float64{2, 5, 10, 50, 200} {
		r := newRig(t, port.Config{Rate: rate})
		r.lead(64)
		for _, l := range r.e.held[1:] {
			l.stopped = true
		}
		sent := 0
		for range seconds * 100 {
			r.serveFull(func(d port.Deliver) { sent += len(d.Msgs) }, func(port.Settle) {})
			r.pass(10 * time.Millisecond)
		}
		if float64(sent) < 0.9*rate*seconds {
			t.Errorf("rate %g: one lane of 64 sent %d messages in %d s, want about %g", rate, sent, seconds, rate*seconds)
		}
	}
}

// Under a rate the table is read of a lane that has sent much ahead of it.
//
// Promises: D, S
func TestRateAheadOfTheTable(t *testing.T) {
	const n = 800
	r := aheadRig(t, port.Config{Rate: 50, Page: 8, Window: 1024})
	all := r.batch(0, "", slices.Repeat([]string{"k"}, n)...)
	log, table, sent, settled := 0, 0, 0, 0
	cut := func(after store.Position, from, most int) (store.Batch, int) {
		to := min(from+most, n)
		return store.Batch{Position: after, Messages: all.Messages[from:to], Meta: all.Meta[from:to], More: to < n}, to
	}
	for range 25 * 100 {
		for rd, ok := maybe[port.Read](r); ok; rd, ok = maybe[port.Read](r) {
			var b store.Batch
			if q := rd.Reads[0]; q.Ahead {
				b, log = cut(q.After, log, q.MaxRecords)
				b.Ahead = true
			} else {
				b, table = cut(store.Position(fmt.Sprint("p", r.now)), table, q.MaxRecords)
				log = max(log, table)
			}
			r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{b}})
		}
		if d, ok := maybe[port.Deliver](r); ok {
			sent += len(d.Msgs)
			r.step(port.Delivered{ID: d.ID})
		}
		if s, ok := maybe[port.Settle](r); ok {
			settled += s.Settlements[0].Delivered
			r.step(port.Settled{ID: s.ID})
		}
		if w, ok := maybe[port.Wait](r); ok {
			r.step(port.Woke{ID: w.ID})
		}
		r.untimed()
		r.pass(10 * time.Millisecond)
	}
	if sent != n || settled != n {
		t.Errorf("%d messages: %d were sent and %d settled, %d ahead of the table", n, sent, settled, r.e.held[0].ahead.Sent())
	}
}

// Of a pipe's rate an instance uses the part of the lanes that it holds, from the lease on
// that tells how many these are.
//
// Promises: S
func TestRateIsSharedByLanes(t *testing.T) {
	r := newRig(t, port.Config{Rate: 160})
	for i, step := range []struct {
		held, all int
		want      float64
	}{
		{16, 16, 160},
		{4, 16, 40},
		{0, 16, 40}, // 0 would be no limit, for the first lanes that it is granted
		{6, 16, 60},
	} {
		g := lanes(step.held, store.ParkedView{})
		g.Total = step.all
		if i == 0 {
			r.leadWith(g)
		} else {
			r.e.takeGrant(g)
		}
		if got := r.e.rate.PerSecond; got != step.want {
			t.Errorf("%d of %d lanes: %g messages a second of 160, want %g", step.held, step.all, got, step.want)
		}
	}
}

// Lanes that come shorten the wait for what an instance with few of them has sent.
//
// Promises: S
func TestLanesThatComeShortenTheWait(t *testing.T) {
	r := newRig(t, port.Config{Rate: 1})
	g := lanes(1, store.ParkedView{})
	g.Total = 64
	r.leadWith(g)
	r.read(r.batch(0, "p1", "a"))
	r.deliver()
	wantEqual(t, "wait with one lane of 64", r.e.rate.At-r.now, 64*time.Second)
	r.e.takeGrant(lanes(64, store.ParkedView{}))
	wantEqual(t, "wait with all lanes", r.e.rate.At-r.now, time.Second)
	r.e.takeGrant(g)
	wantEqual(t, "wait with one lane again", r.e.rate.At-r.now, time.Second)
}

// Without a rate nothing waits.
func TestNoRate(t *testing.T) {
	r := newRig(t, port.Config{Page: 4})
	r.lead(2)
	r.read(r.batch(0, "p1", keys(4)...), r.batch(1, "p1", keys(4)...))
	take[port.Deliver](r)
	take[port.Deliver](r)
}
