package pgstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
)

// What waits behind one dead head, and dead letters that hold nobody,
// may be as many as disks hold: a heartbeat and a look at what is due count them
// and read none of them, else leases run out.
//
// Promises: S
func TestParkedHeapsAreNotRead(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		t.Run("vacuumed", func(t *testing.T) { heapsAreNotRead(t, version, true) })
		t.Run("held back", func(t *testing.T) { heapsAreNotRead(t, version, false) })
	})
}

// heapsAreNotRead runs with pages that VACUUM marks as all-visible, or with an old
// transaction that keeps it from that: then no scan is index-only, and the planner has
// other reasons to choose an index.
func heapsAreNotRead(t *testing.T, version string, vacuumed bool) {
	t.Helper()
	const heap, page = 20_000, 50
	d := fresh(t, version, 4)
	if !vacuumed {
		d.do(d.begin(), `SELECT pg_current_xact_id()`)
	}
	d.exec(`INSERT INTO box.parked (pipe, lane, seq, state, captures, due_at, created_at, version, schema_version, id,
				topic, key, type, content_type, headers, payload)
			SELECT 'main', 1, g, CASE WHEN g % 2 = 0 OR g = 1 THEN 'dead' ELSE 'waiting' END, g = 1, now(), now(), 0, 0, gen_random_uuid(),
				't', CASE WHEN g % 2 = 0 THEN 'dead ' || g ELSE 'hot' END, '', '', '{}', '' FROM generate_series(1, $1::int) g`, heap)
	d.exec(`INSERT INTO box.parked (pipe, lane, seq, state, captures, due_at, created_at, version, schema_version, id,
				topic, key, type, content_type, headers, payload)
			SELECT 'main', 1, $1::int + g, CASE WHEN g = 1 THEN 'retry' ELSE 'waiting' END, g = 1, now(), now(), 0, 0, gen_random_uuid(),
				't', 'other', '', '', '{}', '' FROM generate_series(1, 1000) g`, heap)
	d.exec(`VACUUM ANALYZE box.parked`)
	p := d.probe()
	queues0, rows0, counted0 := p.parkedReads()
	g := mustLease(t, p.store, store.LeaseRequest{BootID: "p", TTL: 10 * time.Second})
	batches, err := p.store.Read(t.Context(), []store.LaneRead{{Lane: 1, Epoch: g.Lanes[1].Epoch, MaxRecords: page, Parked: true}})
	if err != nil {
		t.Fatal(err)
	}
	queues, rows, counted := p.parkedReads()
	queues, rows, counted = queues-queues0, rows-rows0, counted-counted0
	t.Logf("%d entries of queues and %d rows read, %d counted", queues, rows, counted)
	if queues > 500 || rows > 500 || counted > 2*(heap+1000)+500 { // the lease and the look count
		t.Errorf("a heartbeat and a look at %d due of %d parked records read %d entries of queues and %d rows, and counted %d",
			page, heap, queues, rows, counted)
	}
	view, due := g.Lanes[1].Parked, batches[0]
	if view.Records != heap+1000 || len(view.Captured) != 2 || !view.HasDue || view.NextDue > 0 {
		t.Errorf("view: %d records, keys %q, due %v in %v", view.Records, view.Captured, view.HasDue, view.NextDue)
	}
	if len(due.Messages) != page || due.Meta[0].Seq != heap+1 || due.Meta[page-1].Seq != heap+page || !due.More {
		t.Errorf("%d due, more %v", len(due.Messages), due.More)
	}
}

// parkedReads returns what was read of the parked table so far: entries of the indexes
// without its primary key, rows found by them or by a scan of the table, and entries of
// the primary key. Rows found by the primary key are left out: whether its entries need
// them depends on how far VACUUM came.
func (p *probe) parkedReads() (queues, rows, counted int64) {
	p.Helper()
	if _, err := p.pool.Exec(p.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
		p.Fatal(err)
	}
	if err := p.pool.QueryRow(p.Context(), `SELECT sum(idx_tup_read) FILTER (WHERE indexrelname <> 'parked_pkey')::bigint,
			sum(idx_tup_fetch) FILTER (WHERE indexrelname <> 'parked_pkey')::bigint
			 + (SELECT seq_tup_read FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'parked'),
			sum(idx_tup_read) FILTER (WHERE indexrelname = 'parked_pkey')::bigint
			FROM pg_stat_user_indexes WHERE schemaname = $1 AND relname = 'parked'`, p.schema).Scan(&queues, &rows, &counted); err != nil {
		p.Fatal(err)
	}
	return queues, rows, counted
}

// After a partial outage the queues of many keys are due at once. A look
// at some of them reads what it returns, however many keys and records there are,
// and a look that must find them reads no further into the queues than it was asked.
//
// Promises: S
func TestDueQueuesCostWhatTheyReturn(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		const keys, each, page = 1000, 30, 96
		d := fresh(t, version, 4)
		d.exec(`INSERT INTO box.parked (pipe, lane, seq, state, captures, due_at, created_at, version, schema_version, id,
				topic, key, type, content_type, headers, payload)
			SELECT 'main', 1, g, CASE WHEN g <= $1 THEN 'retry' ELSE 'waiting' END, g <= $1, now(), now(), 0, 0, gen_random_uuid(),
				't', 'key ' || g % $1, '', '', '{}', '' FROM generate_series(1, $1::int * $2) g`, keys, each)
		d.exec(`VACUUM ANALYZE box.parked`)
		p := d.probe()
		g := mustLease(t, p.store, store.LeaseRequest{BootID: "p", TTL: 10 * time.Second})
		view := g.Lanes[1].Parked
		if len(view.Captured) != keys || len(view.Heads) != keys || view.Heads[0].Seq != keys || !view.Heads[0].HasDue {
			t.Fatalf("%d captured keys, %d heads, the first %+v", len(view.Captured), len(view.Heads), view.Heads[:1])
		}
		read := func(named []string) (store.Batch, int64) {
			before := p.entries()
			batches, err := p.store.Read(t.Context(), []store.LaneRead{{
				Lane: 1, Epoch: g.Lanes[1].Epoch, MaxRecords: page, MaxBytes: 64 << 20, Parked: true, Keys: named, CountParked: 1,
			}})
			if err != nil {
				t.Fatal(err)
			}
			return batches[0], p.entries() - before
		}
		for _, c := range []struct {
			named    []string
			returned int
			entries  int64 // most index entries
			last     bool
		}{
			{view.Captured[:12], page, page + 12 + 10, false},
			{view.Captured[:3], 3 * each, 3*each + 10, true},
			{nil, page, 5001 + 2*keys + 10*page, false}, // 5,001 are counted for the view
		} {
			b, cost := read(c.named)
			t.Logf("%d keys of %d: %d records, %d index entries", len(c.named), keys, len(b.Messages), cost)
			if len(b.Messages) != c.returned || b.More != !c.last || cost > c.entries {
				t.Errorf("%d keys of %d: %d records, want %d, more %v; %d index entries, at most %d",
					len(c.named), keys, len(b.Messages), c.returned, b.More, cost, c.entries)
			}
		}
	})
}

// entries counts what was read of the parked table's indexes.
func (p *probe) entries() (n int64) {
	p.Helper()
	if _, err := p.pool.Exec(p.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
		p.Fatal(err)
	}
	if err := p.pool.QueryRow(p.Context(), `SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes
		WHERE schemaname = $1 AND relname = 'parked'`, p.schema).Scan(&n); err != nil {
		p.Fatal(err)
	}
	return n
}

// A heartbeat that crosses a settlement of the same owner needs no view:
// to read those of all lanes takes longer than a lease has, and lanes whose views do
// not come in time are given up.
//
// Promises: S
func TestAHeartbeatBesideASettlementNeedsNoView(t *testing.T) {
	d := fresh(t, "18", 2)
	s := d.store("main")
	req := store.LeaseRequest{BootID: "a", TTL: time.Minute}
	g := mustLease(t, s, req)
	l := g.Lanes[0]
	req.Known = map[store.Lane]int64{l.Lane: l.Epoch}
	lost, err := s.Settle(t.Context(), []store.Settlement{{BootID: "a", Lane: l.Lane, Epoch: l.Epoch}})
	if err != nil || len(lost) > 0 {
		t.Fatal(lost, err)
	}
	if now := mustLease(t, s, req).Lanes[0]; !now.Known || now.Epoch != l.Epoch+1 {
		t.Errorf("after its own settlement: known %v at epoch %d, had %d", now.Known, now.Epoch, l.Epoch)
	}
	mustLease(t, s, store.LeaseRequest{BootID: "a", TTL: time.Minute, Leave: true})
	if now := mustLease(t, s, req).Lanes[0]; now.Known {
		t.Errorf("taken anew at epoch %d: known from epoch %d", now.Epoch, l.Epoch)
	}
}

// A look at queues of large records reads no more queues than it has bytes
// for, however many are named.
//
// Promises: G
func TestDueQueuesOfLargeRecordsAreReadByBytes(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		const keys, each, size, most = 100, 3, 1 << 20, 4 << 20
		d := fresh(t, version, 4)
		d.exec(`INSERT INTO box.parked (pipe, lane, seq, state, captures, due_at, created_at, version, schema_version, id,
				topic, key, type, content_type, headers, payload)
			SELECT 'main', 1, g, CASE WHEN g <= $1 THEN 'retry' ELSE 'waiting' END, g <= $1, now(), now(), 0, 0, gen_random_uuid(),
				't', 'key ' || g % $1, '', '', '{}', convert_to(repeat('x', $3::int), 'UTF8') FROM generate_series(1, $1::int * $2) g`, keys, each, size)
		d.exec(`VACUUM ANALYZE box.parked`)
		p := d.probe()
		g := mustLease(t, p.store, store.LeaseRequest{BootID: "p", TTL: 10 * time.Second})
		var named []string
		for i := range keys {
			named = append(named, fmt.Sprint("key ", i))
		}
		for range 3 { // the first one learns how large records are
			before := p.entries()
			batches, err := p.store.Read(t.Context(), []store.LaneRead{{
				Lane: 1, Epoch: g.Lanes[1].Epoch, MaxRecords: keys, MaxBytes: most, Parked: true, Keys: named, CountParked: 1,
			}})
			if err != nil {
				t.Fatal(err)
			}
			b, read := batches[0], p.entries()-before
			t.Logf("%d records returned, %d entries of queues read", len(b.Messages), read)
			if len(b.Messages) != most/size-1 && len(b.Messages) != most/size || !b.More {
				t.Errorf("%d records returned, more %v", len(b.Messages), b.More)
			}
			if read > 2*(most/(256<<10)+1)+4 {
				t.Errorf("%d entries of queues read for %d records", read, len(b.Messages))
			}
		}
	})
}
