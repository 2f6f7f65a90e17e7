package pgstore_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore"
)

// owner is an instance that holds every lane and settles whatever it reads.
type owner struct {
	*db
	store *pgstore.Store
	boot  string
	grant map[store.Lane]*store.LaneGrant
	seen  []string // types of the messages, in the order of delivery
	page  int
}

func (d *db) owner(boot string) *owner {
	d.Helper()
	o := &owner{db: d, store: d.store("main"), boot: boot, page: 100}
	o.lease()
	return o
}

func (o *owner) lease() {
	o.Helper()
	g, err := o.store.Lease(o.Context(), store.LeaseRequest{BootID: o.boot, Instance: o.boot, TTL: time.Minute})
	if err != nil {
		o.Fatal(err)
	}
	o.grant = map[store.Lane]*store.LaneGrant{}
	for i := range g.Lanes {
		o.grant[g.Lanes[i].Lane] = &g.Lanes[i]
	}
}

func (o *owner) reads() []store.LaneRead {
	var reads []store.LaneRead
	for lane, g := range o.grant {
		reads = append(reads, store.LaneRead{Lane: lane, Epoch: g.Epoch, After: g.Position, MaxRecords: o.page, MaxBytes: 1 << 20})
	}
	slices.SortFunc(reads, func(a, b store.LaneRead) int { return int(a.Lane) - int(b.Lane) })
	return reads
}

// readOf finds the request that a batch answers.
func readOf(reads []store.LaneRead, lane store.Lane) *store.LaneRead {
	return &reads[slices.IndexFunc(reads, func(r store.LaneRead) bool { return r.Lane == lane })]
}

// read reads once and settles nothing.
func (o *owner) read() []store.Batch {
	o.Helper()
	batches, err := o.store.Read(o.Context(), o.reads())
	if err != nil {
		o.Fatal(err)
	}
	return batches
}

// step reads once, settles what moved, and reports how many records came.
func (o *owner) step() int {
	o.Helper()
	reads := o.reads()
	batches, err := o.store.Read(o.Context(), reads)
	if err != nil {
		o.Fatal(err)
	}
	n := 0
	var settle []store.Settlement
	for _, b := range batches {
		r := readOf(reads, b.Lane)
		for _, m := range b.Messages {
			o.seen = append(o.seen, m.Type)
		}
		n += len(b.Messages)
		if !bytes.Equal(b.Position, r.After) {
			settle = append(settle, store.Settlement{
				BootID: o.boot, Lane: b.Lane, Epoch: r.Epoch,
				Position: b.Position, Delivered: len(b.Messages),
			})
			o.grant[b.Lane].Position = b.Position
		}
	}
	lost, err := o.store.Settle(o.Context(), settle)
	if err != nil || len(lost) > 0 {
		o.Fatalf("settle: lost %v, %v", lost, err)
	}
	for _, s := range settle {
		o.grant[s.Lane].Epoch++
	}
	return n
}

// drain reads until nothing moves, and returns what came.
func (o *owner) drain() []string {
	o.Helper()
	from := len(o.seen)
	for quiet := 0; quiet < 2; {
		if o.step() == 0 {
			quiet++
		} else {
			quiet = 0
		}
	}
	return o.seen[from:]
}

func (o *owner) want(labels ...string) {
	o.Helper()
	if got := o.drain(); !slices.Equal(got, labels) {
		o.Fatalf("delivered %q, want %q", got, labels)
	}
}

// trap runs a case on every version with an outbox of 4 lanes.
func trap(t *testing.T, run func(d *db, o *owner)) {
	t.Helper()
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		run(d, d.owner("a"))
	})
}
