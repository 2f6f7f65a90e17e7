package pgstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// What a dry run counts is what then goes: by age, by size, of rows and of
// partitions, which go whole and when their time has come, whatever the age of
// the rows in them.
func TestDryRunCountsWhatGoes(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		ctx := t.Context()
		agrees := func(what string, want int64, dropped int, opts admin.KeeperOptions) {
			t.Helper()
			k := newKeeper(t, o.store, &opts)
			d.balanced(o.store, ops.AuditRequest{})
			due, err := k.Due(ctx)
			if err != nil || due.Rows != want || due.Tended.Dropped != dropped {
				t.Errorf("%s: due are %d rows with %d partitions, want %d and %d; held by %q, %v", what, due.Rows, due.Tended.Dropped, want, dropped, due.Tended.HeldBy, err)
			}
			before := d.rows()
			done, err := k.Sweep(ctx)
			if err != nil || done.Rows != due.Rows || done.Tended.Dropped != dropped || d.rows() != before-due.Rows {
				t.Errorf("%s: removed %d rows of %d with %d partitions, %v", what, done.Rows, before, done.Tended.Dropped, err)
			}
			if err := k.Leave(ctx); err != nil {
				t.Error(err)
			}
		}
		d.insert(300)
		o.drain()
		d.sentAgo("1 day")
		d.insert(700)
		o.drain()
		agrees("young rows", 0, 0, admin.KeeperOptions{OlderThan: 25 * time.Hour})
		agrees("old rows", 300, 0, admin.KeeperOptions{OlderThan: time.Hour})
		k := newKeeper(t, o.store, &admin.KeeperOptions{OlderThan: time.Hour, MaxBytes: 100_000})
		if due, err := k.Due(ctx); err != nil || due.Rows < 200 || due.Rows > 690 || len(due.Lanes) != 4 {
			t.Errorf("by size: %+v, %v", due, err)
		}
		agrees("the rest", 700, 0, admin.KeeperOptions{})

		d.convert()
		for _, n := range []int{10, 20, 30} {
			d.insert(n)
			d.tend(ops.TendRequest{OlderThan: keep})
		}
		o.drain()
		d.sentAgo("23 hours")
		agrees("old rows in young partitions", 0, 0, admin.KeeperOptions{OlderThan: time.Hour})
		d.exec(`UPDATE box.partition SET closed_at = closed_at - interval '1 day' WHERE number < 3`)
		agrees("two old partitions", 30, 2, admin.KeeperOptions{OlderThan: time.Hour})
		d.insert(5)
		d.tend(ops.TendRequest{OlderThan: keep})
		due, err := newKeeper(t, o.store, &admin.KeeperOptions{OlderThan: admin.DefaultRetention}).Due(ctx)
		if err != nil || due.Rows != 0 {
			t.Errorf("with the default of a week: %+v, %v", due, err)
		}
		agrees("what a pipe has not settled stays", 30, 1, admin.KeeperOptions{})
	})
}

// An outbox in partitions that takes more than its limit drops settled ones
// before their time, the oldest first and no more of them than that takes, and
// never one that a pipe has not settled.
func TestPartitionsGoBySize(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.convert()
		fill := func() {
			d.exec(`INSERT INTO box.outbox (topic, key, payload) SELECT 't', 'k' || g, convert_to(repeat(md5(g::text), 20), 'UTF8') FROM generate_series(1, 500) g`)
		}
		for range 3 {
			fill()
			d.tend(ops.TendRequest{OlderThan: keep})
		}
		look := func() ops.Partitions {
			p, err := o.store.Office().Partitions.Partitions(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		p := look()
		one := p.List[0].Bytes
		if one < 300_000 || len(p.List) != 6 {
			t.Fatalf("%+v", p)
		}
		req := ops.TendRequest{OlderThan: 24 * time.Hour, Every: 24 * time.Hour, KeepBytes: p.Bytes() - one - one/2}
		if got := d.tend(req); got.Dropped != 0 || got.HeldBy != "main" {
			t.Errorf("nothing is settled: %+v", got)
		}
		o.drain()
		dry := req
		dry.DryRun = true
		if got := d.tend(dry); got.Dropped != 2 || got.Rows != 1000 || len(got.List) != 6 {
			t.Errorf("a dry run: %+v", got)
		}
		if got := d.tend(req); got.Dropped != 2 || got.Rows != 1000 || got.Bytes() > req.KeepBytes || got.HeldBy != "" {
			t.Errorf("by size: %+v", got)
		}
		if n := d.rows(); n != 500 {
			t.Errorf("%d rows are left", n)
		}
		// A quarter of the limit ends the use of a partition too.
		fill()
		if got := d.tend(ops.TendRequest{OlderThan: time.Hour, Every: 2, KeepBytes: 4 * one / 2}); !got.Rolled {
			t.Errorf("not rolled by size: %+v", got)
		}
	})
}

// An admin of the roles looks at the books; rows are the relay's to remove.
func TestAdminAudits(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		pools := d.roles()
		d.insert(10)
		o.drain()
		person := d.storeAs(pools["admin"])
		if b, err := person.Office().Books.Audit(t.Context(), ops.AuditRequest{Full: true}); err != nil || b.Difference() != 0 {
			t.Errorf("%+v, %v", b, err)
		}
		if _, err := person.Office().Books.Audit(t.Context(), ops.AuditRequest{Reopen: true, Actor: "ann", Reason: "test"}); err != nil {
			t.Error(err)
		}
		if p, err := person.Office().Retention.Prune(t.Context(), ops.PruneRequest{DryRun: true}); err != nil || p.Rows != 10 {
			t.Errorf("a dry run counts %d, %v", p.Rows, err)
		}
		_, err := person.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "r"})
		var unusable *store.UnusableError
		if !errors.As(err, &unusable) || !strings.Contains(unusable.Fix, d.schema+"_relay") || d.rows() != 10 {
			t.Errorf("the admin prunes: %v, %d rows", err, d.rows())
		}
	})
}

// newKeeper keeps house in the outbox of s.
func newKeeper(t *testing.T, s *pgstore.Store, o *admin.KeeperOptions) *admin.Keeper {
	t.Helper()
	k, err := admin.NewKeeper(s.Office(), o)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
