package pgstore_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// busy runs writers of every kind for a while.
func (d *db) busy(committed *sync.Map) (wait func()) {
	d.Helper()
	var failed atomic.Value
	var writers sync.WaitGroup
	until := time.Now().Add(raceFor / 2)
	for w := range raceWriters {
		writers.Go(func() {
			if err := d.write(d.Context(), w, until, committed); err != nil {
				failed.Store(err)
			}
		})
	}
	return func() {
		d.Helper()
		writers.Wait()
		if err := failed.Load(); err != nil {
			d.Fatal(err)
		}
	}
}

// Pipes that are added among writers: from the beginning all comes; from now all
// of what begins afterwards and nothing of what was answered before; from a time
// all of what begins after it. Each once and in order.
//
// Promises: L
func TestPipesAddedUnderWriters(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 8)
		var committed sync.Map
		wait := d.busy(&committed)
		type added struct {
			name          string
			from          time.Time // what begins later must come
			before, never time.Time // what was answered before never comes
		}
		var pipes []added
		for i := range 6 {
			since := time.Now()
			d.exec(`SELECT pg_sleep($1)`, raceFor.Seconds()/20) // spread over the writers' time
			for from := ops.FromNow; from <= ops.FromTime; from++ {
				a := added{name: fmt.Sprintf("%s-%d", from, i), before: time.Now()}
				d.add(ops.AddPipe{Actor: "ann", Name: a.name, From: from, Time: since})
				switch from {
				case ops.FromBeginning: // all of it
				case ops.FromNow:
					a.from, a.never = time.Now(), a.before
				case ops.FromTime:
					a.from = since
				}
				pipes = append(pipes, a)
			}
		}
		wait()
		for _, a := range pipes {
			r := d.reader(a.name)
			r.page = 1000
			r.drain()
			count := map[string]int{}
			for _, label := range r.seen {
				count[label]++
			}
			lost, early, twice, all := 0, 0, 0, 0
			committed.Range(func(label, v any) bool {
				at, n := v.(span), count[label.(string)]
				all++
				switch {
				case n > 1:
					twice++
				case n == 0 && at.began.After(a.from):
					lost++
				case n > 0 && at.done.Before(a.never):
					early++
				}
				return true
			})
			if lost+early+twice > 0 || len(r.seen) > all {
				t.Errorf("%s: of %d came %d: %d lost, %d from before, %d twice", a.name, all, len(r.seen), lost, early, twice)
			}
			checkOrder(t, r.seen)
		}
	})
}

// checkOrder wants the labels of each key to rise.
func checkOrder(t *testing.T, seen []string) {
	t.Helper()
	last := map[string]int{}
	for _, label := range seen {
		var w, key, n int
		if _, err := fmt.Sscanf(label, "%d.%d:%d", &w, &key, &n); err != nil {
			t.Fatal(err)
		}
		k := fmt.Sprintf("%d.%d", w, key)
		if prev, ok := last[k]; ok && n <= prev {
			t.Errorf("key %s: %d came after %d", k, n, prev)
		}
		last[k] = n
	}
}

// A pipe that nobody runs, one that is paused and one whose reader stands in the
// middle of a transaction of people (a pause that is not committed) cost another
// pipe nothing: neither its heartbeats nor its reads and settlements wait.
//
// Promises: S
func TestStoppedPipeSlowsNobody(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.add(ops.AddPipe{Actor: "ann", Name: "stopped", From: ops.FromBeginning})
		d.add(ops.AddPipe{Actor: "ann", Name: "paused", From: ops.FromBeginning})
		if err := d.store("main").Office().Pipes.PausePipe(t.Context(), ops.PausePipe{Actor: "ann", Name: "paused"}); err != nil {
			t.Fatal(err)
		}
		stopped := d.reader("stopped") // it holds leases, and works no more
		act := d.begin()
		d.do(act, `LOCK TABLE box.pipe IN EXCLUSIVE MODE`)
		d.do(act, `UPDATE box.pipe SET paused = true`)
		var want []string
		for i := range 20 {
			label := fmt.Sprint(i)
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, label)
			want = append(want, label)
			if _, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: o.boot, Instance: o.boot, TTL: time.Minute}); err != nil {
				t.Fatalf("a heartbeat waits for an act on pipes: %v", err) // up to its lock_timeout of 2 s
			}
			o.step()
		}
		if o.drain(); !slices.Equal(o.seen, want) {
			t.Errorf("delivered %q", o.seen)
		}
		if err := act.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		stopped.want(want...)
	})
}

// A removal waits for settlements of other pipes and they for it, for moments at
// a time: none fails, and nothing of them is lost.
func TestRemovalBesideSettlements(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.add(ops.AddPipe{Actor: "ann", Name: "audit", From: ops.FromBeginning})
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k' || g % 5, g::text FROM generate_series(1, 2000) g`)
		audit := d.reader("audit")
		audit.page, o.page = 20, 20
		half := d.begin() // somebody's settlement that is not through
		d.do(half, `INSERT INTO box.progress (pipe, lane, n, pos, low, next_xid, delivered, owner) VALUES ('other', 0, 1, 0, 0, 0, 0, '')`)
		removed := make(chan error, 1)
		go func() {
			_, err := pgstore.New(d.pool, &pgstore.Options{Schema: d.schema}).Office().Pipes.RemovePipe(t.Context(),
				ops.RemovePipe{Actor: "ann", Name: "audit", Forfeit: 2000})
			removed <- err
		}()
		for range 10 {
			o.step()
		}
		if err := half.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-removed; err != nil {
			t.Fatal(err)
		}
		if o.drain(); len(o.seen) != 2000 {
			t.Errorf("%d of 2000 were delivered beside the removal", len(o.seen))
		}
	})
}
