package pgstore_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// forgetful is an instance whose every read names other lanes and limits. In some rounds it drops
// the messages that it has not settled, or hands all lanes over to another instance.
type forgetful struct {
	*owner
	rnd   *rand.Rand
	after map[store.Lane]store.Position // of the newest batch
	held  map[store.Lane]*store.Settlement
	types map[store.Lane][]string // of the messages held
	spans int                     // of the instances before
}

func (f *forgetful) forget(lane store.Lane) {
	delete(f.after, lane)
	delete(f.held, lane)
	delete(f.types, lane)
}

// request asks for some lanes in some order, each with limits of its own.
func (f *forgetful) request() (some []store.LaneRead, within int) {
	if f.rnd.IntN(3) == 0 {
		within = 500 + f.rnd.IntN(200_000)
	}
	all, rows := f.reads(), 20+f.rnd.IntN(40)
	f.rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if f.rnd.IntN(6) == 0 {
		all = all[f.rnd.IntN(len(all)):]
	}
	for _, r := range all {
		if p := f.after[r.Lane]; p != nil {
			r.After = p
		}
		r.MaxRecords, r.Within = rows, within
		switch f.rnd.IntN(60) {
		case 0:
			r.MaxRecords = 1
		case 1:
			r.MaxBytes = 100 + f.rnd.IntN(1000)
		}
		some = append(some, r)
	}
	if f.rnd.IntN(2) == 0 {
		some[0].Within = 0
	}
	return some, within
}

// take reads, and holds what came.
func (f *forgetful) take() {
	f.Helper()
	f.store.PreferSpan()
	some, within := f.request()
	batches, err := f.store.Read(f.Context(), some)
	if err != nil {
		f.Fatal(err)
	}
	bytesOf, first := 0, 0
	for _, b := range batches {
		r := readOf(some, b.Lane)
		if len(b.Messages) > r.MaxRecords {
			f.Errorf("%d messages where %d were asked for", len(b.Messages), r.MaxRecords)
		}
		for i, m := range b.Messages {
			f.types[b.Lane] = append(f.types[b.Lane], m.Type)
			if bytesOf += m.Size(); i == 0 && r.Within == 0 {
				first = m.Size()
			}
		}
		if bytes.Equal(b.Position, r.After) {
			continue
		}
		s := f.held[b.Lane]
		if s == nil {
			s = &store.Settlement{BootID: f.boot, Lane: b.Lane, Epoch: r.Epoch}
			f.held[b.Lane] = s
		}
		s.Position, f.after[b.Lane], s.Delivered = b.Position, b.Position, s.Delivered+len(b.Messages)
	}
	if within > 0 && bytesOf > within+first {
		f.Errorf("%d bytes where %d were asked for", bytesOf, within)
	}
}

// settle settles what is held, each lane with a chance of three in four.
func (f *forgetful) settle() {
	f.Helper()
	var list []store.Settlement
	for lane, s := range f.held {
		if f.rnd.IntN(4) > 0 {
			list = append(list, *s)
			f.seen = append(f.seen, f.types[lane]...)
		}
	}
	lost, err := f.store.Settle(f.Context(), list)
	if err != nil || len(lost) > 0 {
		f.Fatalf("settle: lost %v, %v", lost, err)
	}
	for _, s := range list {
		f.grant[s.Lane].Position, f.grant[s.Lane].Epoch = s.Position, s.Epoch+1
		f.forget(s.Lane)
	}
}

// handOver ends this instance without a settlement, and another one takes the lanes.
func (f *forgetful) handOver(n int) {
	f.Helper()
	if _, err := f.store.Lease(f.Context(), store.LeaseRequest{BootID: f.boot, Instance: f.boot, TTL: time.Minute, Leave: true}); err != nil {
		f.Fatal(err)
	}
	f.spans += f.store.Spans()
	f.store, f.boot = f.db.store("main"), fmt.Sprint("boot", n)
	clear(f.after)
	clear(f.held)
	clear(f.types)
	f.lease()
}

// TestSpansOfAnyReads: ranges are read for any lanes, with any limits, by instances that forget what
// they read and hand their lanes over, beside writers of every kind and retention. Each row is
// settled once and in order.
//
// Promises: L, O, D
func TestSpansOfAnyReads(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 16)
		d.exec(`ALTER TABLE box.outbox ALTER payload SET DEFAULT convert_to(repeat('x', CASE WHEN random() < 0.1 THEN (random() * 4000)::int ELSE 0 END), 'UTF8')`)
		f := &forgetful{
			owner: d.owner("boot"), rnd: rand.New(rand.NewPCG(7, 0)),
			after: map[store.Lane]store.Position{}, held: map[store.Lane]*store.Settlement{}, types: map[store.Lane][]string{},
		}
		var committed sync.Map
		var failed atomic.Value
		var writers sync.WaitGroup
		until := time.Now().Add(raceFor)
		for w := range raceWriters / 2 {
			write := d.scatter // fills lanes evenly
			if w%5 == 0 {
				write = d.write
			}
			writers.Go(func() {
				if err := write(t.Context(), w, until, &committed); err != nil {
					failed.Store(err)
				}
			})
		}
		n, quiet := 0, 0
		act := func() {
			f.take()
			n++
			switch {
			case n%150 == 0:
				f.handOver(n)
			case n%100 == 1:
				d.prune(f.store, ops.PruneRequest{OlderThan: time.Millisecond})
			case n%40 == 0:
				f.forget(store.Lane(f.rnd.IntN(16)))
			case n%5 == 0:
				f.settle()
			}
			if quiet++; len(f.held) > 0 {
				quiet = 0
			}
		}
		beside(&writers, func() { // so far behind that there are rows in its ranges
			if int(d.count(`SELECT last_value FROM box.outbox_seq`))-len(f.seen) > 2000 {
				act()
			}
		})
		if err := failed.Load(); err != nil {
			t.Fatal(err)
		}
		for quiet = 0; quiet < 50; {
			act()
		}
		spans := f.spans + f.store.Spans()
		checkDelivery(t, f.seen, &committed)
		if spans < 50 {
			t.Errorf("%d reads used a span", spans)
		}
		t.Logf("%d spans of %d reads", spans, n)
	})
}

// TestASpanEndsBeforeWhatFindsNoRoom: a range has a row that the call's bound leaves out, and smaller
// ones of its lane behind it, which find room. They wait for the next read too.
//
// Promises: L, O
func TestASpanEndsBeforeWhatFindsNoRoom(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 16)
		o := d.owner("a")
		d.exec(`INSERT INTO box.outbox (topic, key, type, payload) SELECT 't', g::text, g::text, convert_to(repeat('x', CASE g WHEN 300 THEN 30000 ELSE 0 END), 'UTF8')
			FROM generate_series(1, 600) g`)
		o.page = 4
		o.step() // learns the size of rows
		o.page = 40
		reads, last, n := o.reads(), map[store.Lane]int64{}, len(o.seen)
		within := 20_000
		for range 40 {
			o.store.PreferSpan()
			for i := range reads {
				reads[i].Within = within
			}
			batches, err := o.store.Read(t.Context(), reads)
			if err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, b := range batches {
				readOf(reads, b.Lane).After = b.Position
				found += len(b.Messages)
				for _, m := range b.Meta {
					if m.Seq <= last[b.Lane] {
						t.Errorf("row %d of lane %d came behind row %d", m.Seq, b.Lane, last[b.Lane])
					}
					last[b.Lane] = m.Seq
				}
			}
			if n += found; found == 0 {
				within = 0 // for what finds no room beside others
			}
		}
		if n != 600 || o.store.Spans() < 3 {
			t.Errorf("%d of 600 rows came, by %d spans among others", n, o.store.Spans())
		}
	})
}
