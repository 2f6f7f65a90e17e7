package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// backlog answers reads of an outbox by the contract: lane i has rows[i] records of
// size[i] bytes.
type backlog struct {
	*rig
	size, rows []int
	sent       []int // records of each lane that the sink has taken
	most       int   // bytes held or on their way, at their highest
	largest    int
	payload    []byte
}

func (b *backlog) held() (n int) {
	for _, l := range b.e.held {
		for _, q := range l.queue {
			for i := range q.msgs {
				n += q.msgs[i].Size()
			}
		}
	}
	return n
}

// answer serves one read.
func (b *backlog) answer(rd port.Read) {
	b.t.Helper()
	var out []store.Batch
	spent, payload := 0, b.payload
	for _, r := range rd.Reads {
		var at int
		_, _ = fmt.Sscanf(string(r.After), "p%d", &at)
		lane, bytes := store.Batch{Lane: r.Lane, Position: r.After}, 0
		for at < b.rows[r.Lane] {
			n := len(lane.Messages)
			m := postrider.Message{ID: fmt.Sprint(r.Lane, "-", at), Topic: "orders", Key: fmt.Sprint(r.Lane), Payload: payload[:b.size[r.Lane]]}
			b.largest = max(b.largest, m.Size())
			if n == r.MaxRecords || n > 0 && bytes+m.Size() > r.MaxBytes || r.Within > 0 && spent+m.Size() > r.Within {
				lane.More = true
				break
			}
			bytes, spent, at = bytes+m.Size(), spent+m.Size(), at+1
			lane.Messages = append(lane.Messages, m)
			lane.Meta = append(lane.Meta, store.Meta{Seq: int64(at)})
			lane.Position = store.Position(fmt.Sprint("p", at))
		}
		out = append(out, lane)
	}
	b.step(port.ReadDone{ID: rd.ID, Batches: out})
	b.most = max(b.most, b.held())
}

// run serves everything until the backlog is gone, two reads at a time in flight,
// and reports in how many rounds.
func (b *backlog) run() (rounds int) {
	b.t.Helper()
	for rounds = range 10_000 {
		for {
			rd, ok := maybe[port.Read](b.rig)
			if !ok {
				break
			}
			second, two := maybe[port.Read](b.rig) // asked for before the first is answered
			b.answer(rd)
			if two {
				b.answer(second)
			}
		}
		for {
			d, ok := maybe[port.Deliver](b.rig)
			if !ok {
				break
			}
			for _, m := range d.Msgs {
				if want := fmt.Sprint(d.Lane, "-", b.sent[d.Lane]); m.ID != want {
					b.t.Fatalf("lane %d: %s was sent, want %s", d.Lane, m.ID, want)
				}
				b.sent[d.Lane]++
			}
			b.step(port.Delivered{ID: d.ID})
		}
		if slices.Equal(b.sent, b.rows) {
			return rounds
		}
		b.pass(10 * time.Millisecond)
		if s, ok := maybe[port.Settle](b.rig); ok {
			b.step(port.Settled{ID: s.ID})
		}
		if w, ok := maybe[port.Wait](b.rig); ok {
			b.step(port.Woke{ID: w.ID})
		}
	}
	b.t.Fatalf("sent %v of %v", b.sent, b.rows)
	return 0
}

// What the relay holds and has asked for stays within the cap, whatever the sizes of
// messages are and over however many lanes they lie; one message that is larger than
// what is left comes all the same, and no lane starves.
// Promises: G
func TestBytesOfAllLanesStayWithinTheCap(t *testing.T) {
	const mib = 1 << 20
	mixed := make([]int, 64)
	for i := range mixed {
		mixed[i] = 100 << (i % 18) // 100 bytes to 13 MB
	}
	for name, c := range map[string]struct {
		cap  int
		size []int
		rows int
	}{
		"2 MiB on 38 lanes":             {16 * mib, slices.Repeat([]int{2 * mib}, 38), 4},
		"16 MiB on 64 lanes":            {16 * mib, slices.Repeat([]int{16 * mib}, 64), 2},
		"12 MiB on 8 lanes":             {16 * mib, slices.Repeat([]int{12 * mib}, 8), 4},
		"one large lane among 63 small": {16 * mib, append([]int{5 * mib}, slices.Repeat([]int{500}, 63)...), 40},
		"one small lane among 63 large": {16 * mib, append(slices.Repeat([]int{5 * mib}, 63), 500), 4},
		"every size":                    {16 * mib, mixed, 5},
		"every size, 2 MiB":             {2 * mib, mixed, 5},
		"2 MiB of 2 MiB":                {2 * mib, slices.Repeat([]int{2 * mib}, 64), 3},
	} {
		t.Run(name, func(t *testing.T) {
			n := len(c.size)
			b := &backlog{rig: newRig(t, port.Config{MaxBytes: c.cap}), size: c.size, rows: slices.Repeat([]int{c.rows}, n), sent: make([]int, n), payload: make([]byte, slices.Max(c.size))}
			b.lead(n)
			b.run()
			t.Logf("at most %d KiB held", b.most>>10)
			if b.most > c.cap+b.largest {
				t.Errorf("%d KiB held, the cap is %d KiB and one message of %d KiB", b.most>>10, c.cap>>10, b.largest>>10)
			}
			if b.e.reservedBytes < 0 || b.e.reservedBytes != inFlight(b.e) {
				t.Errorf("%d bytes are reserved, reads in flight have %d", b.e.reservedBytes, inFlight(b.e))
			}
		})
	}
}

func inFlight(e *Engine) (n int) {
	for _, op := range e.reads {
		n += op.bytes
	}
	return n
}

// A large parked record that finds no room beside the reads of a busy log has its
// turn: the log does not keep the right to bring a record of any size.
// Promises: S
func TestALargeParkedRecordComesBesideABusyLog(t *testing.T) {
	const large = 12 << 20
	r := newRig(t, port.Config{MaxBytes: 16 << 20})
	g := lanes(2, store.ParkedView{})
	g.Lanes[1].Parked = queues(map[string]int64{"k": 1}, "k")
	g.Lanes[1].Parked.NextDue, g.Lanes[1].Parked.Heads[0].DueIn = 15*time.Millisecond, 15*time.Millisecond
	r.leadWith(g)
	log := take[port.Read](r)
	for i := range 20 {
		busy := r.batch(0, fmt.Sprint("p", i+1), "a")
		busy.More = true
		r.step(port.ReadDone{ID: log.ID, Batches: []store.Batch{busy}}) // before the parked record is due again
		r.step(port.Delivered{ID: take[port.Deliver](r).ID})
		log = take[port.Read](r)
		r.pass(20 * time.Millisecond)
		parked := take[port.Read](r)
		if !parked.Reads[0].Parked {
			t.Fatalf("read %+v, want the parked record", parked)
		}
		if w := parked.Reads[0].Within; w == 0 || w >= large {
			return
		}
		r.step(port.ReadDone{ID: parked.ID, Batches: []store.Batch{{Lane: 1, More: true}}})
		if s, ok := maybe[port.Settle](r); ok {
			r.step(port.Settled{ID: s.ID})
		}
	}
	t.Error("no read was allowed the parked record")
}

// Lanes whose calls are not answered leave bytes to the others, also in a relay among
// many that may hold less than a lane's window.
// Promises: S, G
func TestALaneThatWaitsLeavesBytesToOthers(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct{ cap, lanes, waiting, size int }{
		"2 MiB, one of 2":         {2 * mib, 2, 1, 4096},
		"2 MiB, one of 64":        {2 * mib, 64, 1, 4096},
		"2 MiB, one of 64, large": {2 * mib, 64, 1, 200 << 10},
		"16 MiB, 4 of 64":         {16 * mib, 64, 4, 16 << 10},
		"16 MiB, 32 of 64":        {16 * mib, 64, 32, 4096},
		"16 MiB, 40 of 64":        {16 * mib, 64, 40, 4096},
	} {
		t.Run(name, func(t *testing.T) {
			b := &backlog{
				rig: newRig(t, port.Config{MaxBytes: c.cap}), size: slices.Repeat([]int{c.size}, c.lanes),
				rows: make([]int, c.lanes), sent: make([]int, c.lanes), payload: make([]byte, c.size),
			}
			for i := range c.waiting {
				b.rows[i] = 4000
			}
			b.lead(c.lanes)
			work := func() (served map[store.Lane]bool) {
				served = map[store.Lane]bool{}
				for range 500 {
					b.pass(10 * time.Millisecond)
					for rd, ok := maybe[port.Read](b.rig); ok; rd, ok = maybe[port.Read](b.rig) {
						b.answer(rd)
					}
					if w, ok := maybe[port.Wait](b.rig); ok {
						b.step(port.Woke{ID: w.ID})
					}
					if s, ok := maybe[port.Settle](b.rig); ok {
						b.step(port.Settled{ID: s.ID})
					}
					for d, ok := maybe[port.Deliver](b.rig); ok; d, ok = maybe[port.Deliver](b.rig) {
						if int(d.Lane) >= c.waiting { // the calls of the others are not answered
							served[d.Lane] = true
							b.step(port.Delivered{ID: d.ID})
						}
					}
				}
				return served
			}
			work()
			for i := c.waiting; i < c.lanes; i++ {
				b.rows[i] = 10
			}
			if n := len(work()); n < c.lanes-c.waiting {
				t.Errorf("%d of %d bytes are held: %d of %d other lanes are read", b.e.bytes, c.cap, n, c.lanes-c.waiting)
			}
		})
	}
}

// A relay that may hold one message settles nothing while nothing is sent.
func TestNothingIsSettledWhereNothingIsDone(t *testing.T) {
	r := newRig(t, port.Config{MaxMessages: 1})
	r.lead(1)
	none[port.Settle](r)
}

// Every lane has its turn, however few messages may be held.
//
// Promises: S
func TestFewMessagesInMemoryStarveNoLane(t *testing.T) {
	const lanes = 3
	b := &backlog{rig: newRig(t, port.Config{MaxMessages: 2}), size: []int{10, 10, 10}, rows: []int{1000, 1000, 1000}, sent: make([]int, lanes), payload: make([]byte, 10)}
	b.lead(lanes)
	turns := map[store.Lane]int{}
	for range 500 {
		b.pass(10 * time.Millisecond)
		for moved := true; moved && turns[0] < 300; {
			moved = false
			if rd, ok := maybe[port.Read](b.rig); ok {
				b.answer(rd)
				moved = true
			}
			if d, ok := maybe[port.Deliver](b.rig); ok {
				turns[d.Lane]++
				b.step(port.Delivered{ID: d.ID})
				moved = true
			}
			if s, ok := maybe[port.Settle](b.rig); ok {
				b.step(port.Settled{ID: s.ID})
				moved = true
			}
		}
	}
	if turns[2] == 0 {
		t.Errorf("turns by lane: %v", turns)
	}
}
