package core

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// queues is a view with queues whose heads have these numbers and are due now.
func queues(heads map[string]int64, keys ...string) store.ParkedView {
	v := store.ParkedView{Captured: keys, Records: len(keys), HasDue: len(keys) > 0}
	for _, key := range keys {
		v.Heads = append(v.Heads, store.Head{Seq: heads[key], HasDue: true})
	}
	return v
}

// queue answers the next parked read with records of the keys it named; those of
// last are the last of their queues.
func (r *rig) queue(last string, keys ...string) {
	r.t.Helper()
	rd := r.parkedRead()
	if rd.Reads[0].Keys == nil {
		r.t.Fatalf("read %+v names no queue", rd.Reads[0])
	}
	b := r.parkedBatch(store.ParkedView{}, store.Waiting, 0, keys...)
	for i := range b.Meta {
		b.Meta[i].Last = b.Messages[i].Key == last
	}
	b.More = true
	r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{b}})
}

// A key is free when the last record of its queue was delivered, and not before.
func TestAKeyIsFreeWhenItsQueueIsEmpty(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(1, queues(map[string]int64{"a": 1, "b": 2}, "a", "b")))
	r.seq = 10
	r.queue("a", "a", "b")
	r.deliver()
	r.step(port.Settled{ID: take[port.Settle](r).ID})
	rd := r.parkedRead()
	wantEqual(t, "named next", fmt.Sprint(rd.Reads[0].Keys), "[b]")
	b := r.parkedBatch(store.ParkedView{}, store.Waiting, 0, "b")
	b.Meta[0].Last = true
	r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{b}})
	d := take[port.Deliver](r)
	log := r.batch(0, "p1", "a", "b")
	r.read(log) // read ahead
	r.step(port.Delivered{ID: d.ID})
	d = take[port.Deliver](r)
	wantEqual(t, "sent before the queue is known to be empty", fmt.Sprint(ids(d)), "["+log.Messages[0].ID+"]")
}

// A message that is parked behind a queue while its last records are on their way
// keeps the key captured: it was not in what was read.
//
// Promises: O
func TestAKeyStaysCapturedForWhatIsParkedBehindItMeanwhile(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(1, queues(map[string]int64{"a": 1}, "a")))
	r.seq = 10
	r.queue("a", "a")
	d := take[port.Deliver](r)
	r.read(r.batch(0, "p1", "a")) // read ahead
	r.step(port.Delivered{ID: d.ID})
	for range 3 {
		if s, ok := maybe[port.Settle](r); ok {
			r.step(port.Settled{ID: s.ID})
		}
	}
	wantEqual(t, "named again", fmt.Sprint(r.parkedRead().Reads[0].Keys), "[a]")
	none[port.Deliver](r)
}

// A read of parked records that fails keeps no lane without any from
// being read, and the next one asks for less.
//
// Promises: S
func TestASlowParkedReadDelaysNoOtherLane(t *testing.T) {
	r := newRig(t, port.Config{})
	g := lanes(2, store.ParkedView{})
	g.Lanes[0].Parked = queues(map[string]int64{"a": 1}, "a")
	r.leadWith(g)
	asked := 0
	for turn := range 12 {
		rd := r.parkedRead()
		wantEqual(t, "lanes", len(rd.Reads), 1)
		if turn > 0 && rd.Reads[0].MaxRecords > max(asked/2, 1) {
			t.Errorf("asked for %d records, then for %d", asked, rd.Reads[0].MaxRecords)
		}
		asked = rd.Reads[0].MaxRecords
		r.step(port.ReadDone{ID: rd.ID, Err: errTest})
		if w, ok := maybe[port.Wait](r); ok {
			r.step(port.Woke{ID: w.ID})
		}
		log := take[port.Read](r)
		wantEqual(t, "lane of the log's read", log.Reads[0].Lane, 1)
		r.step(port.ReadDone{ID: log.ID})
		for n := 0; n < 400 && !hasParkedRead(r); n++ {
			r.pass(50 * time.Millisecond)
		}
	}
	wantEqual(t, "at last", asked, 1)
}

func hasParkedRead(r *rig) bool {
	for _, a := range r.acts {
		if rd, ok := a.(port.Read); ok && rd.Reads[0].Parked {
			return true
		}
	}
	return false
}

// Of what waits for a destination that is down, a lane tries the first key alone,
// and writes nothing of the others. When it works, all of them are read at once.
func TestOneKeyTriesADestinationThatIsDown(t *testing.T) {
	r := newRig(t, port.Config{OutageBase: 100 * time.Millisecond, OutageMax: 200 * time.Millisecond})
	heads := map[string]int64{}
	var keys []string
	for i := range 8 {
		key := fmt.Sprint("k", i)
		keys, heads[key] = append(keys, key), int64(i+1)
	}
	r.leadWith(lanes(1, queues(heads, keys...)))
	r.seq = 10
	down := make([]error, len(keys))
	for i := range down {
		down[i] = errOrdersOut
	}
	r.queue("", keys...)
	r.deliver(down...)
	s := take[port.Settle](r)
	wantEqual(t, "written when it goes down", len(s.Settlements[0].Park), len(keys))
	r.step(port.Settled{ID: s.ID})
	for n := 0; n < 400 && !hasParkedRead(r); n++ {
		if rd, ok := maybe[port.Read](r); ok && !rd.Reads[0].Parked {
			r.step(port.ReadDone{ID: rd.ID})
		}
		r.pass(10 * time.Millisecond)
	}
	rd := r.parkedRead()
	wantEqual(t, "tried", fmt.Sprint(len(rd.Reads[0].Keys)), "1")
	b := r.parkedBatch(store.ParkedView{}, store.Retry, 0, rd.Reads[0].Keys[0])
	b.Meta[0].Last = true
	r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{b}})
	r.deliver()
	s = take[port.Settle](r)
	wantEqual(t, "written while it was down", len(s.Settlements[0].Park), 0)
	r.step(port.Settled{ID: s.ID})
	r.pass(200 * time.Millisecond)
	rd = r.parkedRead()
	if n := len(rd.Reads[0].Keys); n < 2 {
		t.Errorf("%d keys are named when it works", n)
	}
}

// A database clock that is set back by a day delays no captured key by a day. A
// message that waits for its NotBefore keeps it.
//
// Promises: S
func TestAClockThatIsSetBackDelaysNoCapturedKey(t *testing.T) {
	r := newRig(t, port.Config{TTL: 8 * time.Second})
	start, v := time.Unix(1e9, 0), queues(map[string]int64{"a": 1}, "a")
	v.Heads[0].DueIn, v.NextDue = time.Minute, time.Hour
	g := lanes(1, v)
	g.Now = start
	r.leadWith(g)
	r.now += 10 * time.Second
	r.step(port.Tick{})
	g.Now = start.Add(10*time.Second - 24*time.Hour)
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
	l := r.e.held[0]
	wantEqual(t, "the key is due in", l.captured["a"].Due-r.now, 50*time.Second)
	wantEqual(t, "the lane is looked at in", l.due-r.now, 50*time.Second)
	wantEqual(t, "the scheduled message is due in", l.single-r.now, 25*time.Hour-10*time.Second)
}

// A read that named queues and brought nothing, although it says that there is more,
// is followed by a look at the whole lane: a store that has room for few queues of
// large records would be asked for the same ones for ever.
//
// Promises: S
func TestANamedReadThatBringsNothingLooksAtTheLane(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(1, queues(map[string]int64{"a": 1, "b": 2}, "a", "b")))
	rd := r.parkedRead()
	r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{{More: true}}})
	r.pass(100 * time.Millisecond)
	if rd = r.parkedRead(); rd.Reads[0].Keys != nil {
		t.Errorf("read %+v names queues again", rd.Reads[0])
	}
}

// What the relay remembers of captured keys holds no bytes of messages in memory: a
// key and a topic are parts of what a whole read brought.
// Promises: G
func TestCapturedKeysHoldNoMessages(t *testing.T) {
	read := strings.Repeat("orders/key", 1000) // all texts of the messages lie in it
	inside := func(s string) bool {
		at, from := uintptr(unsafe.Pointer(unsafe.StringData(s))), uintptr(unsafe.Pointer(unsafe.StringData(read)))
		return s != "" && at >= from && at < from+uintptr(len(read))
	}
	r := newRig(t, port.Config{})
	r.lead(1)
	check := func(when string) {
		t.Helper()
		l := r.e.held[0]
		if len(l.captured) != 1 {
			t.Fatalf("%s: captured %v", when, l.captured)
		}
		for key, c := range l.captured {
			if inside(key) || inside(c.Place) {
				t.Errorf("%s: key %q or place %q holds a message's bytes", when, key, c.Place)
			}
		}
		for name, s := range r.e.scopes {
			if inside(name) || inside(s.name) {
				t.Errorf("%s: destination %q holds a message's bytes", when, name)
			}
		}
	}
	texts := func(b store.Batch) store.Batch {
		for i := range b.Messages {
			b.Messages[i].Topic, b.Messages[i].Key = read[:6], read[7:10]
		}
		return b
	}
	r.read(texts(r.batch(0, "p1", "key", "key")))
	r.deliver(failed, nil)
	r.e.scope(read[:6])
	check("parked")
	r.settle(0)
	check("settled")
	r.pass(3 * time.Second)
	rd := r.parkedRead()
	r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{texts(r.parkedBatch(store.ParkedView{}, store.Retry, 1, "key"))}})
	check("read again")
	r.deliver()
	r.settle(0)
	check("one delivered")
}

// A lane whose view takes longer than the first part of StoreTimeout has its turn while
// another lane's parked records are read quickly.
//
// Promises: S
func TestASlowViewHasItsTurnBesideQuickOnes(t *testing.T) {
	slow, quick := captured("h"), captured("q")
	slow.HasDue, quick.HasDue = true, true // no heads: the view is read each time
	r := newRig(t, port.Config{})
	g := lanes(2, store.ParkedView{})
	g.Lanes[0].Parked, g.Lanes[1].Parked = slow, quick
	r.leadWith(g)
	served, fails := map[store.Lane]int{}, 0
	for end := r.now + 5*time.Minute; r.now < end; {
		r.pass(10 * time.Millisecond)
		if rd, ok := maybe[port.Read](r); ok && rd.Reads[0].Parked {
			heavy := false
			for _, x := range rd.Reads {
				heavy = heavy || x.Lane == 0
			}
			if heavy && rd.Timeout < 4*time.Second {
				fails++
				r.pass(rd.Timeout)
				r.step(port.ReadDone{ID: rd.ID, Err: errTest})
				continue
			} else if heavy {
				r.pass(4 * time.Second)
			}
			var out []store.Batch
			for _, x := range rd.Reads {
				served[x.Lane]++
				out = append(out, store.Batch{Lane: x.Lane, Parked: quick})
			}
			r.step(port.ReadDone{ID: rd.ID, Batches: out})
		} else if ok {
			r.step(port.ReadDone{ID: rd.ID})
		}
		if w, ok := maybe[port.Wait](r); ok {
			r.step(port.Woke{ID: w.ID})
		}
		for ok := true; ok; {
			_, ok = maybe[port.Timer](r)
		}
	}
	if served[0] == 0 {
		t.Errorf("served %v, failed %d: the lane with the slow view was not read within five minutes", served, fails)
	}
}
