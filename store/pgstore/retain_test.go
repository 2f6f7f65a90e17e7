package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// look audits and fails when something is wrong with the look itself.
func (d *db) look(s *pgstore.Store, req ops.AuditRequest) ops.Books {
	d.Helper()
	b, err := s.Office().Books.Audit(d.Context(), req)
	if err != nil {
		d.Fatal(err)
	}
	return b
}

// balanced fails when the books do not balance.
func (d *db) balanced(s *pgstore.Store, req ops.AuditRequest) ops.Books {
	d.Helper()
	b := d.look(s, req)
	if b.Difference() != 0 {
		for _, l := range b.Lanes {
			if l.Difference != 0 {
				d.Errorf("%+v", l)
			}
		}
		d.Fatalf("difference %d, missing %v", b.Difference(), b.Missing)
	}
	return b
}

// prune sweeps until nothing is left to do and returns how many rows it removed.
func (d *db) prune(s *pgstore.Store, req ops.PruneRequest) (int64, ops.Held) {
	d.Helper()
	d.look(s, ops.AuditRequest{})
	if req.Runner == "" {
		req.Runner = "r"
	}
	total := int64(0)
	for {
		p, err := s.Office().Retention.Prune(d.Context(), req)
		if err != nil {
			d.Fatal(err)
		}
		if p.Runner != "" {
			d.Fatalf("the lease is %s's", p.Runner)
		}
		total += p.Rows
		if len(p.Left) == 0 {
			return total, p.Held
		}
		req.Lanes, req.After = p.Left, p.After
	}
}

func (d *db) rows() int64 {
	d.Helper()
	n := int64(0)
	if err := d.pool.QueryRow(d.Context(), d.sql(`SELECT count(*) FROM box.outbox`)).Scan(&n); err != nil {
		d.Fatal(err)
	}
	return n
}

func (d *db) insert(n int) {
	d.Helper()
	d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k' || g % 50, 'm' || g FROM generate_series(1, $1::int) g`, n)
}

// A transaction that commits behind the cursor while everything
// around it is removed at once still has its messages delivered.
//
// Promises: L, G
func TestRetentionKeepsStragglers(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		tx := d.begin()
		d.put(tx, "late")
		d.insert(200)
		if n := len(o.drain()); n != 200 {
			t.Fatalf("delivered %d", n)
		}
		if n, _ := d.prune(o.store, ops.PruneRequest{}); n != 200 {
			t.Errorf("removed %d rows, want 200", n)
		}
		d.commit(tx)
		if n, _ := d.prune(o.store, ops.PruneRequest{}); n != 0 {
			t.Errorf("removed %d rows that were never delivered", n)
		}
		d.balanced(o.store, ops.AuditRequest{})
		o.want("late")
		d.balanced(o.store, ops.AuditRequest{})
		if n, _ := d.prune(o.store, ops.PruneRequest{}); n != 1 {
			t.Errorf("removed %d rows, want the straggler", n)
		}
		d.balanced(o.store, ops.AuditRequest{Full: true})
		if n := d.rows(); n != 0 {
			t.Errorf("%d rows left", n)
		}
	})
}

// sentAgo notes, as a heartbeat then would have, that the lanes were where they are.
func (d *db) sentAgo(ago string) {
	d.Helper()
	d.exec(`INSERT INTO box.minute (pipe, at, pos, late) SELECT 'main', now() - $1::text::interval, array_agg(pos ORDER BY lane),
		coalesce(range_agg(inflight + draining), '{}') FROM box.lane_cursor WHERE pipe = 'main'`, ago)
}

// Rows that were sent within the retention stay, however old they are, and one that
// bears a date of the future goes with its neighbors.
func TestRetentionByAge(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type, created_at) SELECT 't', 'k' || g % 50, 'old', now() + interval '50 years' * (g % 2) FROM generate_series(1, 60) g`)
		o.drain()
		d.sentAgo("8 days")
		d.exec(`INSERT INTO box.outbox (topic, key, type, created_at) SELECT 't', 'k' || g % 50, 'waited', now() - interval '30 days' FROM generate_series(1, 100) g`)
		o.drain()
		d.sentAgo("6 days")
		const week = 7 * 24 * time.Hour
		d.look(o.store, ops.AuditRequest{})
		dry, err := o.store.Office().Retention.Prune(t.Context(), ops.PruneRequest{OlderThan: week, DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := d.prune(o.store, ops.PruneRequest{OlderThan: week, Limit: 4000}); n != dry.Rows || n != 60 {
			t.Errorf("removed %d, a dry run said %d, want 60", n, dry.Rows)
		}
		if n := d.rows(); n != 100 {
			t.Errorf("%d rows left, want 100", n)
		}
		d.balanced(o.store, ops.AuditRequest{Full: true})
	})
}

func TestRetentionBySize(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(2000)
		o.drain()
		for most, estimated := range map[int64]bool{0: false, 100 << 10: true} { // the size of a row comes from a few
			d.look(o.store, ops.AuditRequest{})
			dry, err := o.store.Office().Retention.Prune(t.Context(), ops.PruneRequest{OlderThan: 24 * time.Hour, MaxBytes: most, DryRun: true})
			if err != nil || dry.Estimated != estimated {
				t.Errorf("a dry run for %d bytes: %+v, %v, want an estimate: %t", most, dry, err, estimated)
			}
		}
		n, _ := d.prune(o.store, ops.PruneRequest{OlderThan: 24 * time.Hour, MaxBytes: 100 << 10, Limit: 100})
		left := d.rows()
		if n+left != 2000 || left < 200 || left > 1000 {
			t.Errorf("removed %d, %d left of a table for 100 KiB", n, left)
		}
		d.balanced(o.store, ops.AuditRequest{Full: true})
	})
}

// A pipe that does not run holds its rows, above the cap too: that is said, and
// nothing is removed.
//
// Promises: G
func TestAStoppedPipeHoldsRows(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		other := d.store("other")
		mustLease(t, other, store.LeaseRequest{BootID: "x", TTL: time.Minute})
		d.insert(300)
		o.drain()
		n, held := d.prune(o.store, ops.PruneRequest{HoldRows: 100})
		if n != 0 || d.rows() != 300 {
			t.Errorf("removed %d rows that the pipe has not read", n)
		}
		if held.Pipe != "other" || held.Rows != 300 || !held.Over || held.Bytes < 300*100 {
			t.Errorf("held: %+v", held)
		}
		d.exec(`DELETE FROM box.pipe WHERE name = 'other'`)
		if n, held = d.prune(o.store, ops.PruneRequest{HoldRows: 100}); n != 300 || held.Over {
			t.Errorf("removed %d, held %+v", n, held)
		}
	})
}

// One runner at a time; a lease that has run out moves on, and the batch of the
// runner that lost it removes nothing.
//
// Promises: G
func TestOneRunnerOfRetention(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(100)
		o.drain()
		d.look(o.store, ops.AuditRequest{})
		if _, err := o.store.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "a", Limit: 1}); err != nil {
			t.Fatal(err)
		}
		p, err := o.store.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "b"})
		if err != nil || p.Runner != "a" || p.Rows != 0 {
			t.Fatalf("two runners at once: %+v, %v", p, err)
		}
		left := d.rows()
		_, err = o.store.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "a", Archive: func(ctx context.Context, rows []ops.ArchivedRow) error {
			d.exec(`UPDATE box.retention SET until = clock_timestamp() - interval '1 second'`)
			if p, err := o.store.Office().Retention.Prune(ctx, ops.PruneRequest{Runner: "b", Limit: 1}); err != nil || p.Runner != "" {
				t.Errorf("the lease was not taken over: %+v, %v", p, err)
			}
			left = d.rows()
			return nil
		}})
		var lost *ops.RunnerError
		if !errors.As(err, &lost) || d.rows() != left {
			t.Errorf("a runner without a lease removed %d rows: %v", left-d.rows(), err)
		}
		if p, err = o.store.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "c", Limit: 1, Take: true}); err != nil || p.Runner != "" || p.Rows == 0 {
			t.Errorf("a person's batch: %+v, %v", p, err)
		}
		if p, err = o.store.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "b"}); err != nil || p.Runner != "c" {
			t.Errorf("beside a person's: %+v, %v", p, err)
		}
		left = d.rows()
		if _, err := o.store.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "c", Leave: true}); err != nil {
			t.Fatal(err)
		}
		if n, _ := d.prune(o.store, ops.PruneRequest{Runner: "c"}); n != left {
			t.Errorf("removed %d, want %d", n, left)
		}
		d.balanced(o.store, ops.AuditRequest{Full: true})
	})
}

// The archive has the rows before they are gone; when it fails they stay, and
// return.
func TestArchiveComesFirst(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(100)
		d.exec(`INSERT INTO box.outbox (topic, key, type, payload, headers) VALUES ('t', 'big', 'big', decode(repeat('ab', 1000), 'hex'), '{"a": "b"}')`)
		o.drain()
		var seen []string
		var fail error
		req := ops.PruneRequest{Limit: 7, Archive: func(_ context.Context, rows []ops.ArchivedRow) error {
			if fail != nil {
				return fail
			}
			for _, r := range rows {
				if r.Message.Type == "big" && (len(r.Message.Payload) != 1000 || r.Message.Headers["a"] != "b" || r.Message.ID == "") {
					t.Errorf("archived %+v", r.Message)
				}
				seen = append(seen, fmt.Sprint(r.Lane, "/", r.Seq))
			}
			return nil
		}}
		fail = errors.New("disk full")
		d.look(o.store, ops.AuditRequest{})
		req.Runner = "r"
		if _, err := o.store.Office().Retention.Prune(t.Context(), req); !errors.Is(err, fail) || d.rows() != 101 {
			t.Fatalf("%d rows left, %v", d.rows(), err)
		}
		fail = nil
		if n, _ := d.prune(o.store, req); n != 101 || d.rows() != 0 {
			t.Errorf("removed %d, %d left", n, d.rows())
		}
		slices.Sort(seen)
		if len(slices.Compact(seen)) != 101 {
			t.Errorf("%d rows archived", len(seen))
		}
		d.balanced(o.store, ops.AuditRequest{Full: true})
	})
}

// A pipe that is being added from the beginning and a batch exclude each other:
// whoever comes first, the pipe has every row that is there once it exists.
//
// Promises: G
func TestRetentionWaitsForAPipeThatIsAdded(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(50)
		o.drain()
		d.look(o.store, ops.AuditRequest{})
		tx := d.begin()
		d.do(tx, `LOCK TABLE box.pipe IN SHARE ROW EXCLUSIVE MODE`)
		d.do(tx, `INSERT INTO box.pipe (name) VALUES ('late')`)
		done := make(chan error, 1)
		go func() {
			_, err := o.store.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "r"})
			done <- err
		}()
		d.awaitLock("pipe")
		d.commit(tx)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if d.rows() != 50 {
			t.Errorf("%d rows left: the pipe was to have 50", d.rows())
		}
	})
}

// awaitLock waits until somebody waits for a lock on a table.
func (d *db) awaitLock(table string) {
	d.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		waits := false
		err := d.pool.QueryRow(d.Context(), d.sql(`SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'box.`+table+`'::regclass)`)).Scan(&waits)
		if err != nil {
			d.Fatal(err)
		}
		if waits {
			return
		}
	}
	d.Fatalf("nobody waits for table %s", table)
}

// A sequence that was set back gives out numbers that lie behind the cursors:
// what looks settled was never seen, and nothing is removed.
func TestRetentionStopsWhenTheSequenceWasSetBack(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(50)
		o.drain()
		d.look(o.store, ops.AuditRequest{})
		d.exec(`SELECT setval('box.outbox_seq', 10)`)
		d.exec(`DELETE FROM box.outbox WHERE seq BETWEEN 11 AND 20`)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'unseen')`)
		before := d.rows()
		if _, err := o.store.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "r"}); err == nil || d.rows() != before {
			t.Errorf("%d rows removed, %v", before-d.rows(), err)
		}
	})
}

// Tidy leaves the newest rows of each lane, what is new, and what a person must see.
//
// Promises: G
func TestTidy(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(20)
		o.drain()
		d.exec(`INSERT INTO box.progress (pipe, lane, n, pos, low, next_xid, delivered, owner)
			SELECT g.pipe, g.lane, g.n + i, g.pos, g.low, g.next_xid, g.delivered, g.owner FROM box.lane_cursor g CROSS JOIN generate_series(1, 200) i WHERE g.n > 0`)
		d.exec(`INSERT INTO box.request (pipe, lane, seq, kind, done_at) SELECT 'main', 0, i, 'retry', now() - i * interval '1 day' FROM generate_series(1, 10) i`)
		d.exec(`INSERT INTO box.relay (pipe, boot_id, ttl, alive_until) VALUES ('main', 'gone', '1 s', now() - interval '2 days')`)
		d.exec(`INSERT INTO box.minute (pipe, at, pos, late) SELECT p, now() - i * interval '12 hours',
			CASE WHEN i > 10 THEN '{0,0,0,0}' ELSE (SELECT array_agg(c.pos ORDER BY c.lane) FROM box.lane_cursor c) END, '{}' FROM unnest('{main,quiet}'::text[]) p, generate_series(1, 20) i
			WHERE p = 'main' OR i > 10`)
		d.exec(`INSERT INTO box.settlement (pipe, lane, last, n, until, pos, at, running) SELECT 'main', 0, 0, i, now() - i * interval '40 minutes', '{0}', '{NULL}', '{0}' FROM generate_series(1, 3) i`)
		done, err := o.store.Office().Retention.Tidy(t.Context(), ops.TidyRequest{})
		if err != nil || done["progress"] < 400 || done["request"] != 4 || done["relay"] != 1 {
			t.Errorf("tidied %v, %v", done, err)
		}
		// The last minute before those that tell of a row stays, and an hour of settlements.
		if done["minute"] != 9+9 || done["settlement"] != 2 {
			t.Errorf("tidied %v, want 9 minutes of each pipe, and two settlements", done)
		}
		d.balanced(o.store, ops.AuditRequest{})
	})
}

// What a batch of an archive cannot take comes with the next one, also when a
// large row between them stays because a pipe has not settled it.
//
// Promises: L
func TestArchiveGoesOnBehindALargeRowThatStays(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		put := `INSERT INTO box.outbox (topic, key, type, payload) SELECT 't', 'k', 'm', convert_to(repeat('x', $1), 'UTF8') FROM generate_series(1, $2::int)`
		d.exec(put, 6<<20, 4) // a batch takes three of them
		late := d.begin()
		d.do(late, put, 15<<20, 1)
		d.exec(put, 1, 1)
		o.drain()
		d.look(o.store, ops.AuditRequest{})
		d.commit(late)
		n, _ := d.prune(o.store, ops.PruneRequest{Archive: func(context.Context, []ops.ArchivedRow) error { return nil }})
		if n != 5 {
			t.Errorf("a sweep archived %d rows, 5 were due", n)
		}
	})
}
