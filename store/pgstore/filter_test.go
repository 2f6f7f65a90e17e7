package pgstore_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// The SQL predicate and the Go one are the same for every pattern and message.
func TestFilterPredicates(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		filters := []store.Filter{
			{},
			{Topics: []string{"orders"}},
			{Topics: []string{"orders.*", "refunds"}},
			{Topics: []string{"*"}},
			{Types: []string{""}},
			{Types: []string{"a_c", "100%"}},
			{Types: []string{`a\*`}},
			{Keys: []string{"é*", `q"u,o{t}e`}},
			{Keys: []string{"A*"}},
			{Headers: map[string]string{"region": "eu"}},
			{Headers: map[string]string{"region": "eu", "x": `a "b" \ c`}},
			{Topics: []string{"orders*"}, Types: []string{"paid"}, Keys: []string{"k*"}, Headers: map[string]string{"region": "eu"}},
		}
		msgs := []postrider.Message{
			{Topic: "orders"},
			{Topic: "orders.eu", Type: "paid", Key: "k1", Headers: map[string]string{"region": "eu"}},
			{Topic: "orders.eu", Type: "paid", Key: "k1", Headers: map[string]string{"region": "EU"}},
			{Topic: "ordersX", Type: "abc", Key: "éa"},
			{Topic: "refunds", Type: "a_c", Key: `q"u,o{t}e`, Headers: map[string]string{"region": "eu", "x": `a "b" \ c`, "more": ""}},
			{Topic: "Refunds", Type: "100%", Key: "abc"},
			{Topic: "refunds.", Type: "1000", Key: "ABC"},
			{Topic: "t", Type: `a\b`},
		}
		tx := d.begin()
		if err := (&writer{Tx: tx, db: d}).Enqueue(t.Context(), msgs...); err != nil {
			t.Fatal(err)
		}
		d.commit(tx)
		for i, f := range filters {
			name := fmt.Sprint("f", i)
			d.add(ops.AddPipe{Actor: "ann", Name: name, From: ops.FromBeginning, Filter: f})
			var want, got, shown []string
			for _, m := range msgs {
				if f.Match(&m) {
					want = append(want, m.Topic+"/"+m.Type)
				}
			}
			slices.Sort(want)
			pending, err := d.store(name).Office().Admin.Status(t.Context())
			if err != nil || int(pending.Pending) != len(want) {
				t.Errorf("%s: status says %d pending, %v; want %d", f, pending.Pending, err, len(want))
			}
			r := d.reader(name)
			for more := true; more; { // the first page of an outbox is a few rows: nobody has seen their size
				more = false
				for _, b := range r.read() {
					for _, m := range b.Messages {
						got = append(got, m.Topic+"/"+m.Type)
					}
					more, r.grant[b.Lane].Position = more || b.More, b.Position
				}
			}
			slices.Sort(got)
			rows, err := d.pool.Query(t.Context(), d.sql(`SELECT topic || '/' || type AS name FROM box.messages WHERE pipe = $1 ORDER BY topic, type`), name)
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				var s string
				if err := rows.Scan(&s); err != nil {
					t.Fatal(err)
				}
				shown = append(shown, s)
			}
			slices.Sort(shown)
			if !slices.Equal(got, want) || !slices.Equal(shown, want) {
				t.Errorf("%s: read %q, the view has %q, want %q", f, got, shown, want)
			}
			if status, err := r.store.Office().Admin.Status(t.Context()); err != nil || (len(want) == 0) != (status.Lag == 0) {
				t.Errorf("%s: lag %v, %v, with %d messages", f, status.Lag, err, len(want))
			}
		}
	})
}

// A filter that lets nothing pass goes over a backlog in bounded steps: no read
// looks at more than its share, and the position follows.
func TestFilterPassesOverABacklog(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.add(ops.AddPipe{Actor: "ann", Name: "few", From: ops.FromBeginning, Filter: store.Filter{Types: []string{"yes*"}}})
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k' || g % 7, CASE WHEN g % 25000 = 0 THEN 'yes ' || g ELSE 'no' END
			FROM generate_series(1, 100000) g`)
		r := d.reader("few")
		r.page = 3
		longest, steps := 0, 0
		for last := map[store.Lane]int{}; steps < 200; steps++ {
			reads := r.reads()
			batches := r.read()
			more := false
			for _, b := range batches {
				more = more || b.More
			}
			if !more && steps > 0 {
				break
			}
			for _, b := range batches {
				if len(b.Messages) == 0 && b.More && bytes.Equal(b.Position, readOf(reads, b.Lane).After) {
					t.Fatalf("lane %d says more and does not move", b.Lane)
				}
				last[b.Lane]++
				longest = max(longest, last[b.Lane])
			}
			r.step()
		}
		r.drain()
		if got := strings.Join(slices.Sorted(slices.Values(r.seen)), ","); got != "yes 100000,yes 25000,yes 50000,yes 75000" {
			t.Errorf("delivered %s", got)
		}
		if steps < 5 || steps > 100 {
			t.Errorf("%d reads for 100,000 rows in 4 lanes: one looks at 16,384", steps)
		}
		if n := d.count(`SELECT min(pos) FROM box.lane_cursor WHERE pipe = 'few'`); n < 100000-512 {
			t.Errorf("the slowest lane stands at %d", n)
		}
	})
}

// Late rows that do not pass are gone over in pages like those that do, also when
// a new owner continues in the middle.
func TestFilterAndLateRows(t *testing.T) {
	for name, passing := range map[string]string{"some": "g % 1000 = 0", "none": "false", "all": "true"} {
		t.Run(name, func(t *testing.T) {
			trap(t, func(d *db, o *owner) {
				d.add(ops.AddPipe{Actor: "ann", Name: "few", Filter: store.Filter{Types: []string{"yes*"}}})
				r := d.reader("few")
				r.page = 500
				bulk := d.begin()
				d.do(bulk, `INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', CASE WHEN `+passing+` THEN 'yes ' || g ELSE 'no' END
					FROM generate_series(1, 5000) g`)
				r.drain()
				d.commit(bulk)
				d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'yes after'), ('t', 'k', 'no')`)
				want := int(d.count(`SELECT count(*) FROM box.outbox WHERE type LIKE 'yes%'`))
				for pages := 0; len(r.seen) < want && pages < 100; pages++ {
					if r.step(); pages == 3 {
						r.lease()
					}
				}
				if r.drain(); len(r.seen) != want || r.seen[want-1] != "yes after" {
					t.Fatalf("%d of %d came, the last is %q", len(r.seen), want, r.seen[max(len(r.seen)-1, 0)])
				}
				for i, label := range r.seen[:want-1] {
					if i > 0 && len(label) < len(r.seen[i-1]) || slices.Contains(r.seen[:i], label) && i < 20 {
						t.Fatalf("late row %d is %q", i, label)
					}
				}
			})
		})
	}
}

// Two pipes with filters, one without, under writers of every kind: each gets
// exactly its own, once and in order.
//
// Promises: L
func TestEachPipeGetsExactlyItsOwn(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 8)
		even, odd := store.Filter{Keys: nil}, store.Filter{}
		for w := range raceWriters { // a writer's keys are "writer.key"
			if pattern := fmt.Sprintf("%d.*", w); w%2 == 0 {
				even.Keys = append(even.Keys, pattern)
			} else {
				odd.Keys = append(odd.Keys, pattern)
			}
		}
		d.add(ops.AddPipe{Actor: "ann", Name: "even", Filter: even})
		d.add(ops.AddPipe{Actor: "ann", Name: "odd", Filter: odd})
		readers := []*owner{d.owner("a"), d.reader("even"), d.reader("odd")}
		var committed sync.Map
		var failed atomic.Value
		var writers sync.WaitGroup
		until := time.Now().Add(raceFor / 2)
		for w := range raceWriters {
			writers.Go(func() {
				if err := d.write(t.Context(), w, until, &committed); err != nil {
					failed.Store(err)
				}
			})
		}
		beside(&writers, func() {
			for _, r := range readers {
				r.page = 20
				r.step()
			}
		})
		if err := failed.Load(); err != nil {
			t.Fatal(err)
		}
		for i, r := range readers {
			r.drain()
			own := sync.Map{}
			committed.Range(func(label, _ any) bool {
				var w, key, n int
				if _, err := fmt.Sscanf(label.(string), "%d.%d:%d", &w, &key, &n); err != nil {
					t.Fatal(err)
				}
				if i == 0 || w%2 == i-1 {
					own.Store(label, true)
				}
				return true
			})
			checkDelivery(t, r.seen, &own)
		}
	})
}
