package pgstore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// partitioned is a new outbox with partitions.
func partitioned(t *testing.T, version string, lanes int) *db {
	t.Helper()
	return originalOf(version, lanes, true).copy(t)
}

// tend does what is due as if every moment were a day.
func (d *db) tend(req ops.TendRequest) ops.Tended {
	d.Helper()
	if req.Every == 0 {
		req.Every = time.Nanosecond
	}
	if req.OlderThan >= 0 { // the books count rows before they go
		d.balanced(d.store("main"), ops.AuditRequest{})
	}
	got, err := d.store("main").Office().Partitions.Tend(d.Context(), req)
	if err != nil {
		d.Fatal(err)
	}
	return got
}

const keep = -1 // drop nothing

// The life of partitions: made ahead, used one after the other, dropped when
// everything in them is settled.
func TestPartitionsComeAndGo(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := partitioned(t, version, 4)
		o := d.owner("a")
		if got := d.tend(ops.TendRequest{OlderThan: keep}); got.Rolled || got.Ahead != 2 || got.Alarm() != "" {
			t.Fatalf("unused: %+v, alarm %q", got, got.Alarm())
		}
		var want []string
		for i := range 4 {
			label := fmt.Sprint("m", i)
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, label)
			want = append(want, label)
			got := d.tend(ops.TendRequest{OlderThan: keep})
			if !got.Rolled || got.Made != 1 || got.Ahead != 2 || len(got.List) != 4+i {
				t.Fatalf("after %s: %+v", label, got)
			}
		}
		if got := d.tend(ops.TendRequest{}); got.Dropped != 0 || got.HeldBy != "main" {
			t.Fatalf("nothing is settled: %+v", got)
		}
		o.want(want...)
		got := d.tend(ops.TendRequest{})
		if got.Dropped != 4 || got.Rows != 4 || len(got.List) != 4 || got.HeldBy != "" || got.Busy {
			t.Fatalf("all is settled: %+v", got)
		}
		if n := d.count(`SELECT count(*) FROM box.outbox`); n != 0 {
			t.Errorf("%d rows are left", n)
		}
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'after')`)
		o.want("after")
		if b := d.balanced(o.store, ops.AuditRequest{Full: true}); b.Opened {
			t.Error("the books began anew")
		}
		if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Target: -1}); err != nil {
			t.Error(err)
		}
	})
}

// A pipe that does not move holds partitions, however old they are. So does a pipe
// whose straggler has not been delivered, and so do the books, which count rows
// before they are removed.
//
// Promises: L
func TestPartitionsAreHeld(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.convert()
		still := d.store("still")
		if _, err := still.Lease(t.Context(), store.LeaseRequest{BootID: "s", TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		late := d.begin()
		d.put(late, "late")
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'a')`)
		o.want("a")
		d.commit(late)
		d.tend(ops.TendRequest{OlderThan: keep})
		holds := func(who ...string) {
			t.Helper()
			got, err := o.store.Office().Partitions.Tend(t.Context(), ops.TendRequest{Every: time.Hour})
			if err != nil || got.Dropped != 0 || !slices.Contains(who, got.HeldBy) {
				t.Errorf("want held by %q: %+v, %v", who, got, err)
			}
		}
		s := &owner{db: d, store: still, boot: "s", page: 10}
		holds("main", "still")
		o.want("late")
		holds("still")
		s.lease()
		s.drain()
		holds("(books)")
		d.balanced(o.store, ops.AuditRequest{})
		d.exec(`DELETE FROM box.pipe`)
		holds("(no pipe)")
		d.exec(`INSERT INTO box.pipe (name) VALUES ('main')`)
		if got := d.tend(ops.TendRequest{Every: time.Hour, OlderThan: time.Hour}); got.Dropped != 0 || got.HeldBy != "" {
			t.Errorf("too young: %+v", got)
		}
		if got := d.tend(ops.TendRequest{Every: time.Hour, OnlyEmpty: true}); got.Dropped != 0 || got.HeldBy != "(archive)" {
			t.Errorf("not empty: %+v", got)
		}
		if got := d.tend(ops.TendRequest{Every: time.Hour}); got.Dropped != 1 || got.Rows != 2 {
			t.Errorf("nobody holds it: %+v", got)
		}
	})
}

// A sequence that is set back below what was dropped finds a place, its
// messages are delivered, and the partitions continue.
func TestSequenceSetBackBelowDroppedPartitions(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.convert()
		for i := range 2 {
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, fmt.Sprint(i))
			d.tend(ops.TendRequest{OlderThan: keep})
		}
		o.want("0", "1")
		if got := d.tend(ops.TendRequest{}); got.Dropped != 2 {
			t.Fatalf("%+v", got)
		}
		d.exec(`SELECT setval('box.outbox_seq', 1)`)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'low')`)
		if got, err := o.store.Office().Partitions.Tend(t.Context(), ops.TendRequest{Every: time.Nanosecond}); err != nil || got.Dropped != 0 || got.Rolled {
			t.Errorf("while the sequence is low: %+v, %v", got, err)
		}
		if _, err := o.store.Read(t.Context(), o.reads()); err == nil {
			t.Error("a reader did not notice")
		}
		o.lease()
		o.want("low")
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'next')`)
		o.want("next")
		d.look(o.store, ops.AuditRequest{}) // it begins anew
		d.tend(ops.TendRequest{OlderThan: keep})
		if got := d.tend(ops.TendRequest{}); got.Dropped == 0 || got.HeldBy != "" {
			t.Errorf("afterwards: %+v", got)
		}
		if n := d.rows(); n != 0 {
			t.Errorf("%d rows are left", n)
		}
	})
}

// When nobody makes partitions, writers continue until every number of the last
// one is used, and the alarm fires long before.
func TestPartitionHeadroom(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.convert()
		p, err := o.store.Office().Partitions.Partitions(t.Context())
		if err != nil || p.Alarm() != "" || p.Room < 2*ops.LowRoom {
			t.Fatalf("fresh: %+v, %v", p, err)
		}
		top := p.List[len(p.List)-1].Above
		for _, c := range []struct {
			last int64
			word string
		}{
			{p.List[0].Above - 3, ""}, {top - 60_000_000_000, "no partition is made ahead"}, {top - 1000, "numbers run out"},
		} {
			d.exec(`SELECT setval('box.outbox_seq', $1)`, c.last)
			for i := range 4 { // across the bound
				label := fmt.Sprint(c.last, " ", i)
				d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, label)
				o.want(label)
			}
			st, err := o.store.Office().Admin.Status(t.Context())
			if err != nil || (c.word == "") != (len(st.Alarms) == 0) {
				t.Errorf("at %d: status %q, %v", c.last, st.Alarms, err)
			}
			found, err := o.store.Office().Doctor.Examine(t.Context(), ops.ExamineRequest{Only: []string{"partitions"}})
			if err != nil || len(found) != 1 || (c.word == "") != (found[0].Severity == ops.OK) {
				t.Errorf("at %d: doctor %+v, %v", c.last, found, err)
			}
			p, err := o.store.Office().Partitions.Partitions(t.Context())
			if err != nil || c.word == "" && p.Alarm() != "" || !strings.Contains(p.Alarm(), c.word) {
				t.Errorf("at %d: alarm %q lacks %q, %v", c.last, p.Alarm(), c.word, err)
			}
		}
		if got := d.tend(ops.TendRequest{OlderThan: keep}); got.Made != 2 || got.Alarm() != "" {
			t.Errorf("tended: %+v, %q", got, got.Alarm())
		}
	})
}

// The role of relays tends an outbox without owning a table; others cannot. An
// admin counts what is due.
func TestRolesTendPartitions(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.convert()
		pools := d.roles()
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'a')`)
		o.want("a")
		d.balanced(o.store, ops.AuditRequest{})
		as := func(role string) *pgstore.Store {
			return pgstore.New(pools[role], &pgstore.Options{Schema: d.schema})
		}
		for _, role := range []string{"writer", "reader", "admin"} {
			if _, err := as(role).Office().Partitions.Tend(t.Context(), ops.TendRequest{}); err == nil {
				t.Errorf("%s tends", role)
			}
		}
		if _, err := as("reader").Office().Partitions.Partitions(t.Context()); err != nil {
			t.Error(err)
		}
		if got, err := as("relay").Office().Partitions.Tend(t.Context(), ops.TendRequest{Every: time.Nanosecond, OlderThan: keep}); err != nil || !got.Rolled || got.Made != 1 {
			t.Errorf("relay: %+v, %v", got, err)
		}
		if got, err := as("admin").Office().Partitions.Tend(t.Context(), ops.TendRequest{DryRun: true}); err != nil || got.Dropped != 1 {
			t.Errorf("admin: %+v, %v", got, err)
		}
		if got, err := as("relay").Office().Partitions.Tend(t.Context(), ops.TendRequest{Every: time.Hour}); err != nil || got.Dropped != 1 {
			t.Errorf("relay: %+v, %v", got, err)
		}
		d.writerInserts(pools["writer"])
		o.want("by the writer")
	})
}

func (d *db) writerInserts(pool *pgxpool.Pool) {
	d.Helper()
	if _, err := pool.Exec(d.Context(), d.sql(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'by the writer')`)); err != nil {
		d.Error(err)
	}
}

// A transaction that has inserted, and takes no lock since, does not learn of
// partitions: the sequence does not move on to one that was made meanwhile.
//
// Promises: L
func TestIdleTransactionFindsItsPartitions(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.convert()
		long := d.begin()
		d.put(long, "long 0")
		roll := func(want bool) {
			t.Helper()
			d.label("short")
			if got := d.tend(ops.TendRequest{OlderThan: keep}); got.Rolled != want {
				t.Fatalf("want a new partition %v: %+v", want, got)
			}
		}
		roll(true)
		roll(true)
		roll(false)
		none := d.begin() // holds the lock, and has no id
		d.do(none, `INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', 'none' WHERE false`)
		d.put(long, "long 1")
		d.commit(long)
		roll(false)
		d.put(none, "long 2")
		d.commit(none)
		roll(true)
		o.want("long 0", "short", "short", "short", "long 1", "short", "long 2", "short")
	})
}

// A vacuum of one partition holds back the drop of no other.
func TestVacuumOfAnotherPartitionHoldsNoDrop(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.convert()
		d.label("a")
		o.want("a")
		d.tend(ops.TendRequest{OlderThan: keep})
		d.label("b")
		o.want("b")
		vacuum := d.begin() // it takes this lock, of the partition alone
		d.do(vacuum, `LOCK TABLE box.outbox_p2 IN SHARE UPDATE EXCLUSIVE MODE`)
		if got := d.tend(ops.TendRequest{Every: time.Hour}); got.Dropped != 1 || got.Busy {
			t.Errorf("%+v", got)
		}
		d.commit(vacuum)
	})
}

// After an outage, a partition that was closed long ago stays until its last settlement is old
// enough.
//
// Promises: G
func TestPartitionsGoByTheirSettlement(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.convert()
		due := func(what string, want int) {
			t.Helper()
			if n := d.count(`SELECT victims FROM box.partition_due('1 hour', 0)`); n != min(int64(want), 1) {
				t.Errorf("%s: %d partitions are due, want %d", what, n, want)
			}
			if got := d.tend(ops.TendRequest{Every: time.Hour, OlderThan: time.Hour}); got.Dropped != want || got.HeldBy != "" {
				t.Errorf("%s: %+v, want %d dropped", what, got, want)
			}
		}
		closed := func(label string) {
			t.Helper()
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, label)
			d.tend(ops.TendRequest{OlderThan: keep})
			d.exec(`UPDATE box.partition SET closed_at = closed_at - interval '2 hours'`)
			o.want(label)
		}
		closed("a")
		due("settled just now", 0)
		d.exec(`UPDATE box.progress SET settled_at = settled_at - interval '2 hours'`)
		due("settled two hours ago", 1)
		closed("b")
		d.exec(`DELETE FROM box.minute`)
		d.exec(`INSERT INTO box.minute (pipe, at, pos, late) SELECT 'main', now() - interval '90 minutes', array_fill(0::bigint, ARRAY[lanes]), '{}' FROM box.outbox_info`)
		due("not settled in that minute", 0)
		d.exec(`UPDATE box.minute SET pos = array_fill(1000000000000::bigint, ARRAY[array_length(pos, 1)]),
			late = (SELECT int8multirange(int8range(xid::text::bigint, xid::text::bigint + 1)) FROM box.outbox WHERE type = 'b')`)
		due("late in that minute", 0)
		d.exec(`UPDATE box.minute SET late = '{}'`)
		due("settled in that minute", 1)
	})
}
