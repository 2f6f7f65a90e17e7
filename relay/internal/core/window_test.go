package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

func keys(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint("k", i))
	}
	return out
}

// Promises: D
func TestReadsAheadUpToTheWindowAndNoFurther(t *testing.T) {
	r := newRig(t, port.Config{Window: 8, Page: 4, SettleAfter: time.Minute})
	r.lead(1)
	more := func(pos string) {
		t.Helper()
		b := r.batch(0, pos, keys(4)...)
		b.More = true
		r.read(b)
	}
	more("p1")
	rd := take[port.Read](r)
	wantEqual(t, "read ahead after", string(rd.Reads[0].After), "p1")
	b := r.batch(0, "p2", keys(4)...)
	b.More = true
	r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{b}})
	none[port.Read](r) // the window is full
	r.deliver()
	s := take[port.Settle](r) // half of the window is unsettled
	none[port.Read](r)
	r.step(port.Settled{ID: s.ID})
	take[port.Read](r)
	wantEqual(t, "position", string(s.Settlements[0].Position), "p1")
	wantEqual(t, "delivered", s.Settlements[0].Delivered, 4)
}

// Promises: G
func TestBytesFillAWindowToo(t *testing.T) {
	r := newRig(t, port.Config{WindowBytes: 10})
	r.lead(1)
	b := r.batch(0, "p1", "a")
	b.Messages[0].Payload = make([]byte, 10)
	b.More = true
	r.read(b)
	none[port.Read](r)
}

func TestOneReadServesManyLanes(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(64)
	wantEqual(t, "lanes in the first read", len(take[port.Read](r).Reads), 64)
	none[port.Read](r)
}

// TestDeliveredMessagesAreNotHeld: what waits for its settlement counts as held, but its messages
// use no memory any more.
//
// Promises: G
func TestDeliveredMessagesAreNotHeld(t *testing.T) {
	r := newRig(t, port.Config{Window: 8, Page: 4})
	r.lead(1)
	r.read(r.batch(0, "p1", keys(3)...))
	b, bytes := r.e.lanes[0].queue[0], r.e.bytes
	r.deliver()
	if b.msgs != nil || b.meta != nil {
		t.Errorf("%d delivered messages are held", len(b.msgs))
	}
	wantEqual(t, "messages that count", r.e.msgs, 3)
	wantEqual(t, "bytes that count", r.e.bytes, bytes)
	wantEqual(t, "delivered", r.settle(0).Delivered, 3)
	wantEqual(t, "messages after the settlement", r.e.msgs+r.e.lanes[0].msgs, 0)
	wantEqual(t, "bytes after the settlement", r.e.bytes+r.e.lanes[0].bytes, 0)
}

// TestALaneReadsAheadWithTheOthers: a lane with nothing to deliver is read beside a read in flight.
// One that has something waits for its answer. Otherwise the two would be read in turns for good:
// few lanes in short reads, which come far ahead of the others.
func TestALaneReadsAheadWithTheOthers(t *testing.T) {
	r := newRig(t, port.Config{Page: 4})
	r.lead(2)
	page := func(lane store.Lane, pos string) store.Batch {
		b := r.batch(lane, pos, keys(4)...)
		b.More = true
		return b
	}
	r.read(page(0, "p1"))
	slow := take[port.Read](r)
	wantEqual(t, "lanes of the read ahead", len(slow.Reads), 1)
	r.step(port.Woke{ID: take[port.Wait](r).ID})
	beside := take[port.Read](r)
	wantEqual(t, "the lane that is read beside it", beside.Reads[0].Lane, 1)
	r.step(port.ReadDone{ID: beside.ID, Batches: []store.Batch{page(1, "p1")}})
	none[port.Read](r)
	r.step(port.ReadDone{ID: slow.ID, Batches: []store.Batch{page(0, "p2")}})
	wantEqual(t, "lanes of the next read", len(take[port.Read](r).Reads), 2)
}

func TestOnlyOneDeliverPerLaneAndInOrder(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(func() store.Batch { b := r.batch(0, "p1", "a"); b.More = true; return b }())
	r.read(r.batch(0, "p2", "a"))
	first := take[port.Deliver](r)
	none[port.Deliver](r)
	r.step(port.Delivered{ID: first.ID})
	wantEqual(t, "second", fmt.Sprint(ids(take[port.Deliver](r))), "[m2]")
}

func TestBatchesAreSplitToWhatTheSinkTakes(t *testing.T) {
	r := newRig(t, port.Config{Sink: broker.Info{MaxBatch: 2}})
	r.lead(1)
	r.read(r.batch(0, "p1", "a", "b", "c", "d", "e"))
	var got []string
	for range 3 {
		got = append(got, fmt.Sprint(ids(r.deliver())))
	}
	wantEqual(t, "calls", fmt.Sprint(got), "[[m1 m2] [m3 m4] [m5]]")
	wantEqual(t, "delivered", r.settle(0).Delivered, 5)
}

func TestSmallBatchesByBytes(t *testing.T) {
	r := newRig(t, port.Config{Sink: broker.Info{MaxBatchBytes: 100}})
	r.lead(1)
	b := r.batch(0, "p1", "a", "b", "c")
	for i := range b.Messages {
		b.Messages[i].Payload = make([]byte, 30+60*i)
	}
	r.read(b)
	wantEqual(t, "first", fmt.Sprint(ids(r.deliver())), "[m1]")
	wantEqual(t, "second", fmt.Sprint(ids(r.deliver())), "[m2]")
	wantEqual(t, "larger than the limit goes alone", fmt.Sprint(ids(r.deliver())), "[m3]")
}

func TestAMovedPositionWithoutMessagesIsSettledLazily(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(r.batch(0, "p0")) // nothing moved
	r.step(port.Woke{ID: take[port.Wait](r).ID})
	r.read(r.batch(0, "p1"))
	r.step(port.Woke{ID: take[port.Wait](r).ID})
	r.read(r.batch(0, "p2"))
	r.pass(time.Second)
	none[port.Settle](r)
	r.pass(3 * time.Second)
	s := take[port.Settle](r)
	wantEqual(t, "position", string(s.Settlements[0].Position), "p2")
	r.step(port.Settled{ID: s.ID})
	r.pass(10 * time.Second)
	none[port.Settle](r)
}

func TestPollingSlowsDownAndSpeedsUp(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	var waits []time.Duration
	for range 7 {
		r.read()
		w := take[port.Wait](r)
		waits = append(waits, w.Max/time.Millisecond)
		r.step(port.Woke{ID: w.ID})
	}
	r.read(r.batch(0, "p1", "a"))
	waits = append(waits, take[port.Wait](r).Max/time.Millisecond)
	if want := []time.Duration{3, 6, 12, 24, 40, 40, 40, 3}; !slices.Equal(waits, want) {
		t.Errorf("waits %d ms, want %d", waits, want)
	}
}

func TestStoreErrorsAreWaitedForAndToldOnce(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	tries := 0
	for range 200 {
		r.pass(50 * time.Millisecond)
		if rd, ok := maybe[port.Read](r); ok {
			tries++
			r.step(port.ReadDone{ID: rd.ID, Err: errTest})
		}
	}
	if tries < 3 || tries > 40 {
		t.Errorf("%d reads in 10 s of failures", tries)
	}
	r.pass(20 * time.Second)
	r.read()
	h := factsOf[port.HealthChanged](r)
	if len(h) != 2 || h[0].Part != "store" || !h[0].Down || h[1].Down {
		t.Errorf("health changes %+v", h)
	}
}

func TestTheHotPathAllocatesNothingPerMessage(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	b := r.batch(0, "p1", keys(256)...)
	perBatch := testing.AllocsPerRun(50, func() {
		r.acts, r.facts = r.acts[:0], r.facts[:0]
		r.e.lanes[0].idle = false
		for id := range r.e.reads {
			r.step(port.ReadDone{ID: id, Batches: []store.Batch{b}})
		}
		for id := range r.e.calls {
			r.step(port.Delivered{ID: id})
		}
		if r.e.settle != nil {
			r.step(port.Settled{ID: r.e.settle.id})
		}
		r.e.lanes[0].idle = false
		r.step(port.Tick{})
	})
	if perBatch > 60 {
		t.Errorf("%.0f allocations for a batch of 256 messages", perBatch)
	}
}
