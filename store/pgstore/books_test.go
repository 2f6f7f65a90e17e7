package pgstore_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// laneOf finds a lane's book.
func laneOf(t *testing.T, b ops.Books, differs bool) ops.LaneBook {
	t.Helper()
	for _, l := range b.Lanes {
		if (l.Difference != 0) == differs {
			return l
		}
	}
	t.Fatalf("no lane differs (%v): %+v", differs, b.Lanes)
	return ops.LaneBook{}
}

// The two books balance at every look, also while messages commit
// late, and whatever retention has removed.
//
// Promises: Q
func TestBooksBalance(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.balanced(o.store, ops.AuditRequest{})
		long := d.begin()
		d.put(long, "long")
		for i := range 5 {
			d.insert(100)
			d.balanced(o.store, ops.AuditRequest{})
			o.step()
			d.balanced(o.store, ops.AuditRequest{})
			o.drain()
			if b := d.balanced(o.store, ops.AuditRequest{Full: i == 2}); b.Counted > 1000 {
				t.Errorf("a look counted %d rows", b.Counted)
			}
			d.prune(o.store, ops.PruneRequest{})
		}
		d.commit(long)
		d.balanced(o.store, ops.AuditRequest{})
		o.want("long")
		b := d.balanced(o.store, ops.AuditRequest{Full: true})
		sent := int64(0)
		for _, l := range b.Lanes {
			sent += l.Sent
		}
		if sent != 501 || b.Opened {
			t.Errorf("sent %d, opened %v", sent, b.Opened)
		}
		if again := d.look(o.store, ops.AuditRequest{MaxAge: time.Hour}); again.At != b.At || again.Counted != 0 {
			t.Errorf("a look within its age counted again: %+v", again)
		}
	})
}

// A row that disappears before it was delivered is found by the next look, with
// its lane, its window and its number.
//
// Promises: Q
func TestBooksFindAPendingRowThatIsGone(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(100)
		o.drain()
		d.balanced(o.store, ops.AuditRequest{})
		d.insert(100)
		d.balanced(o.store, ops.AuditRequest{})
		var seq int64
		var lane store.Lane
		if err := d.pool.QueryRow(t.Context(), d.sql(`DELETE FROM box.outbox WHERE type = 'm77' AND seq > 100 RETURNING seq, lane`)).Scan(&seq, &lane); err != nil {
			t.Fatal(err)
		}
		o.drain()
		for range 2 { // and it is not forgotten
			l := laneOf(t, d.look(o.store, ops.AuditRequest{}), true)
			if l.Lane != lane || l.Difference != 1 || l.From >= seq || l.To < seq || l.To > 200 || !slices.Contains(l.Unused, seq) {
				t.Errorf("removed %d of lane %d, found %+v", seq, lane, l)
			}
		}
		d.look(o.store, ops.AuditRequest{Reopen: true, Actor: "ann", Reason: "a test"})
		d.insert(10)
		o.drain()
		d.balanced(o.store, ops.AuditRequest{Full: true})
	})
}

// A row that disappears after it was delivered is found by a full count, and a
// look counts in full by itself once the server's statistics show the deletion.
//
// Promises: Q
func TestBooksFindASettledRowThatIsGone(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(100)
		o.drain()
		d.balanced(o.store, ops.AuditRequest{Full: true})
		var seq int64
		var lane store.Lane
		if err := d.pool.QueryRow(t.Context(), d.sql(`DELETE FROM box.outbox WHERE type = 'm77' RETURNING seq, lane`)).Scan(&seq, &lane); err != nil {
			t.Fatal(err)
		}
		b := d.look(o.store, ops.AuditRequest{Full: true})
		if len(b.Missing) != 1 || b.Missing[0].Lane != lane || b.Missing[0].Rows != 1 || !slices.Contains(b.Missing[0].Unused, seq) {
			t.Errorf("missing %+v, want %d of lane %d", b.Missing, seq, lane)
		}
		if b = d.look(o.store, ops.AuditRequest{}); b.Difference() != 1 {
			t.Errorf("the next look has forgotten it: %+v", b)
		}
		if b = d.look(o.store, ops.AuditRequest{Reopen: true, Actor: "ann", Reason: "a test"}); b.Difference() != 0 {
			t.Errorf("reopened: %+v", b)
		}
		d.exec(`DELETE FROM box.outbox WHERE type = 'm78'`)
		for end := time.Now().Add(time.Minute); b.Difference() == 0 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			b = d.look(o.store, ops.AuditRequest{})
		}
		if len(b.Missing) != 1 || b.Missing[0].Rows != 1 {
			t.Errorf("nobody looked after the deletion: %+v", b.Missing)
		}
	})
}

// Promises: Q
func TestBooksFindAFalseCounter(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(100)
		o.drain()
		d.balanced(o.store, ops.AuditRequest{})
		d.insert(50)
		o.drain()
		d.exec(`UPDATE box.progress g SET delivered = delivered + 3 WHERE lane = 2
			AND n = (SELECT max(n) FROM box.progress WHERE lane = 2)`)
		l := laneOf(t, d.look(o.store, ops.AuditRequest{}), true)
		if l.Lane != 2 || l.Difference != -3 || l.From < 80 || l.From > 100 || l.To != 150 || len(l.IDs) == 0 {
			t.Errorf("found %+v", l)
		}
	})
}

// What is set aside, sent again or discarded stays in balance.
func TestBooksCountWhatIsSetAside(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(4)
		var settle []store.Settlement
		reads := o.reads()
		var parked []int64
		for _, b := range o.read() {
			r := readOf(reads, b.Lane)
			s := store.Settlement{BootID: o.boot, Lane: b.Lane, Epoch: r.Epoch, Position: b.Position}
			for i, m := range b.Messages {
				s.Park = append(s.Park, store.Park{Seq: b.Meta[i].Seq, Message: m, State: store.Dead, Captures: true, Class: "rejected"})
				parked = append(parked, b.Meta[i].Seq)
			}
			settle = append(settle, s)
		}
		if lost, err := o.store.Settle(t.Context(), settle); err != nil || len(lost) > 0 {
			t.Fatal(lost, err)
		}
		if b := d.balanced(o.store, ops.AuditRequest{}); len(parked) != 4 || laneSum(b).Parked != 4 {
			t.Fatalf("parked %+v", laneSum(b))
		}
		for i, kind := range []store.ActKind{store.ActDiscard, store.ActRetry, store.ActDiscard} {
			if _, err := o.store.Office().Admin.Request(t.Context(), store.Act{Kind: kind, Seq: parked[i]}); err != nil {
				t.Fatal(err)
			}
		}
		o.lease()
		g, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: o.boot, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		settle = nil
		for _, r := range g.Requests {
			settle = append(settle, store.Settlement{BootID: o.boot, Lane: r.Lane, Epoch: o.grant[r.Lane].Epoch, Requests: []int64{r.ID}})
			o.grant[r.Lane].Epoch++
			if lost, err := o.store.Settle(t.Context(), settle[len(settle)-1:]); err != nil || len(lost) > 0 {
				t.Fatal(lost, err)
			}
		}
		if lost, err := o.store.Settle(t.Context(), settle[:1]); err != nil { // a repeated settle counts once
			t.Fatal(lost, err)
		}
		// A relay of the first version discards and does not count it.
		d.exec(`INSERT INTO box.request (pipe, lane, seq, kind) SELECT 'main', lane, seq, 'discard' FROM box.parked WHERE state = 'dead'`)
		d.exec(`DELETE FROM box.parked WHERE state = 'dead'`)
		d.exec(`UPDATE box.request SET done_at = now(), result = 'done' WHERE done_at IS NULL`)
		if sum := laneSum(d.balanced(o.store, ops.AuditRequest{Full: true})); sum.Parked != 1 || sum.Gone != 3 || sum.Sent != 0 {
			t.Errorf("books %+v", sum)
		}
	})
}

func laneSum(b ops.Books) (sum ops.LaneBook) {
	for _, l := range b.Lanes {
		sum.Committed += l.Committed
		sum.Sent += l.Sent
		sum.Parked += l.Parked
		sum.Gone += l.Gone
		sum.Pending += l.Pending
	}
	return sum
}

// An outbox that had delivered before it had books begins them with what is there.
func TestBooksOfAnOldOutbox(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := empty(t, version, 4)
		s := d.store("main")
		if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Target: 1, Lanes: 4}); err != nil {
			t.Fatal(err)
		}
		d.insert(300)
		d.exec(`INSERT INTO box.progress (pipe, lane, n, pos, low, next_xid, delivered, owner) SELECT 'main', l, 1, 0, 0, 1, 7, '' FROM generate_series(0, 3) l`)
		if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{}); err != nil {
			t.Fatal(err)
		}
		long := d.begin()
		d.put(long, "long")
		if b := d.balanced(s, ops.AuditRequest{}); !b.Opened || b.Counted != 0 {
			t.Errorf("first look: opened %v, counted %d", b.Opened, b.Counted)
		}
		d.commit(long)
		d.insert(10)
		if b := d.balanced(s, ops.AuditRequest{Full: true}); b.Opened || b.Counted != 11+311 {
			t.Errorf("second look: opened %v, counted %d", b.Opened, b.Counted)
		}
		d.exec(`DELETE FROM box.outbox WHERE seq = 5`)
		if b := d.look(s, ops.AuditRequest{Full: true}); b.Difference() == 0 {
			t.Error("a row that is gone was not missed")
		}
	})
}

// TestBooksOfAnEarlierRelease: an audit counts each row once as well if the one before noted
// only the transactions that ran, or none.
//
// Promises: Q
func TestBooksOfAnEarlierRelease(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(5)
		long := d.begin()
		d.put(long, "long")
		d.balanced(o.store, ops.AuditRequest{})
		d.exec(`UPDATE box.book_cursor SET running = running - int8multirange(int8range(upper(running) - 1, NULL))`)
		d.insert(7)
		d.commit(long)
		if b := d.balanced(o.store, ops.AuditRequest{}); b.Counted != 8 {
			t.Errorf("after an earlier release %d rows were counted, want 8", b.Counted)
		}
		d.exec(`UPDATE box.book_cursor SET running = '{}'`)
		d.insert(3)
		if b := d.balanced(o.store, ops.AuditRequest{Full: true}); b.Counted != 3+16 {
			t.Errorf("then %d rows were counted, want 19", b.Counted)
		}
	})
}

// A lane with more pending rows than a look counts is said to be behind, and
// what cannot be so is still found.
func TestBooksOfALaneThatIsBehind(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key) SELECT 't', 'one' FROM generate_series(1, 25000)`)
		b := d.balanced(o.store, ops.AuditRequest{})
		i := slices.IndexFunc(b.Lanes, func(l ops.LaneBook) bool { return l.Behind })
		if i < 0 || b.Lanes[i].Pending != 20000 || b.Lanes[i].Committed != 25000 {
			t.Fatalf("books %+v", b.Lanes)
		}
		if l := d.look(o.store, ops.AuditRequest{MaxAge: time.Nanosecond}).Lanes[i]; l.Difference != 0 || l.Pending != 500 || !l.Behind {
			t.Errorf("a repeated audit found %+v", l)
		}
		d.exec(`UPDATE box.progress SET delivered = delivered + 6000 WHERE lane = $1`, b.Lanes[i].Lane)
		if l := laneOf(t, d.look(o.store, ops.AuditRequest{}), true); l.Difference != -1000 {
			t.Errorf("found %+v", l)
		}
		if l := laneOf(t, d.look(o.store, ops.AuditRequest{Full: true}), true); l.Difference != -6000 || l.Behind {
			t.Errorf("found %+v", l)
		}
	})
}

// Retention at once, two looks at a time and concurrent writers with every kind
// of transaction: nothing is lost, doubled or reordered, and no look differs.
//
// Promises: Q
func TestRetentionAndBooksUnderConcurrentWriters(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 8)
		o := d.owner("a")
		o.page = 20
		var committed sync.Map
		var failed atomic.Value
		var writers, keepers sync.WaitGroup
		until := time.Now().Add(raceFor)
		over := make(chan struct{})
		for w := range raceWriters {
			writers.Go(func() {
				if err := d.write(t.Context(), w, until, &committed); err != nil {
					failed.Store(err)
				}
			})
		}
		looks, removed := atomic.Int64{}, atomic.Int64{}
		for i := range 2 {
			s := d.store("main")
			keepers.Go(func() {
				for {
					select {
					case <-over:
						return
					default:
					}
					b, err := s.Office().Books.Audit(t.Context(), ops.AuditRequest{Full: looks.Load()%10 == 0})
					if err != nil {
						failed.Store(err)
						return
					}
					if b.Difference() != 0 {
						t.Errorf("look %d differs: %+v", looks.Load(), laneOf(t, b, true))
					}
					looks.Add(1)
					if i == 0 {
						p, err := s.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "r", Limit: 400})
						if err != nil {
							failed.Store(err)
							return
						}
						removed.Add(p.Rows)
					}
				}
			})
		}
		beside(&writers, func() { o.step() })
		for o.step() > 0 {
		}
		o.drain()
		close(over)
		keepers.Wait()
		if err := failed.Load(); err != nil {
			t.Fatal(err)
		}
		checkDelivery(t, o.seen, &committed)
		d.balanced(o.store, ops.AuditRequest{Full: true})
		t.Logf("%d looks, %d rows removed", looks.Load(), removed.Load())
		if removed.Load() < 500 || looks.Load() < 20 {
			t.Error("too little happened to prove anything")
		}
	})
}

// What a pipe's filter does not let pass is not in its book.
func TestBooksOfAFilteredPipe(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(20)
		long := d.begin()
		d.do(long, `INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k1', 'm1'), ('other', 'k2', 'm1')`)
		d.look(o.store, ops.AuditRequest{})
		if _, err := o.store.Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Name: "some", From: ops.FromBeginning, Actor: "ann", Filter: store.Filter{Topics: []string{"o*"}}}); err != nil {
			t.Fatal(err)
		}
		if b := d.balanced(o.store, ops.AuditRequest{}); !b.Opened {
			t.Error("the book of the new pipe was not opened")
		}
		d.exec(`INSERT INTO box.outbox (topic, key) SELECT CASE WHEN i % 2 = 0 THEN 'other' ELSE 't' END, 'k' || i FROM generate_series(1, 40) i`)
		d.balanced(o.store, ops.AuditRequest{})
		d.commit(long)
		d.balanced(o.store, ops.AuditRequest{Full: true})
		o.drain()
		b := d.balanced(o.store, ops.AuditRequest{})
		pending := map[string]int64{}
		for _, l := range b.Lanes {
			pending[l.Pipe] += l.Pending
		}
		if pending["some"] != 21 || pending["main"] != 0 {
			t.Errorf("pending %v", pending)
		}
		if n, held := d.prune(o.store, ops.PruneRequest{}); n != 0 || held.Pipe != "some" || held.Rows != 21 {
			t.Errorf("removed %d, held %+v", n, held)
		}
		d.balanced(o.store, ops.AuditRequest{Full: true})
	})
}

// A look at a large table reads what is new and what was running, not the table.
func TestALookDoesNotReadTheTable(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		cfg := d.pool.Config()
		cfg.MaxConns = 1 // others report what they have read when they like
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		s := pgstore.New(pool, &pgstore.Options{Schema: d.schema})
		o := &owner{db: d, store: s, boot: "a", page: 10_000}
		o.lease()
		d.insert(30_000)
		long := d.begin()
		d.put(long, "long")
		d.insert(10)
		o.drain()
		d.look(s, ops.AuditRequest{})
		read := func() (n int64) {
			if err := pool.QueryRow(t.Context(), d.sql(`SELECT pg_stat_force_next_flush(), (SELECT idx_tup_fetch + seq_tup_read + coalesce(
				(SELECT sum(idx_tup_read) FROM pg_stat_all_indexes i WHERE i.relid = t.relid), 0) FROM pg_stat_all_tables t WHERE t.relid = 'box.outbox'::regclass)`)).
				Scan(nil, &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		read()
		before := read()
		d.insert(20)
		d.balanced(s, ops.AuditRequest{})
		d.balanced(s, ops.AuditRequest{Count: true})
		read()
		if n := read() - before; n > 500 {
			t.Errorf("two looks read %d rows of a table of 30,000 that held 20 new ones", n)
		}
	})
}
