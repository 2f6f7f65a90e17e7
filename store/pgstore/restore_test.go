package pgstore_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// await polls a query whose answer becomes true.
func (d *db) await(what, text string, args ...any) {
	d.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		done := false
		if err := d.pool.QueryRow(d.Context(), d.sql(text), args...).Scan(&done); err != nil {
			d.Fatalf("%s: %v", text, err)
		}
		if done {
			return
		}
		if time.Now().After(deadline) {
			d.Fatalf("not within a minute: %s", what)
		}
	}
}

// A restore to a point in time goes back to what was settled
// then. Everything that the restored history holds and had not settled comes, a
// straggler too; what was written after the point is gone, although it had been
// delivered, and its numbers are given out again.
//
// Promises: L, O
func TestPointInTimeRestore(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		pg := testserver.StartPostgres(t, version, testserver.WithConfig("archive_mode = on",
			"archive_command = 'mkdir -p ../archive && cp %p ../archive/%f'"))
		d := &db{T: t, pool: newPool(t, pg.URL), schema: "box", lanes: 4}
		if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
			t.Fatal(err)
		}
		if err := pg.Stop(); err != nil { // a cold copy is a base backup
			t.Fatal(err)
		}
		home := filepath.Join(pg.Dir, "restored")
		if err := os.Mkdir(home, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cp", "-a", filepath.Join(pg.Dir, "data"), home).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := pg.Restart(); err != nil {
			t.Fatal(err)
		}
		d.pool.Reset()

		o := d.owner("a")
		late := d.begin()
		d.put(late, "late")
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'sent')`)
		o.want("sent")
		d.commit(late)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'pending')`)
		d.exec(`SELECT pg_create_restore_point('before')`)
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', 'after the point' FROM generate_series(1, 40)`)
		if n := len(o.drain()); n != 42 {
			t.Fatalf("%d delivered before the restore", n)
		}
		segment := ""
		if err := d.pool.QueryRow(t.Context(), `SELECT pg_walfile_name(pg_switch_wal())`).Scan(&segment); err != nil {
			t.Fatal(err)
		}
		d.await("the log is in the archive", `SELECT coalesce(last_archived_wal >= $1, false) FROM pg_stat_archiver`, segment)
		if err := pg.Stop(); err != nil {
			t.Fatal(err)
		}
		c := restored(t, version, home)
		heir := c.owner("a")
		c.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'new')`)
		heir.want("late", "pending", "new")
	})
}

// restored starts the copy in home and lets it recover up to the point "before".
func restored(t *testing.T, version, home string) *db {
	t.Helper()
	if err := os.WriteFile(filepath.Join(home, "data", "recovery.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	pg, err := testserver.LaunchPostgres(t.Context(), version, home, testserver.WithConfig("restore_command = 'cp ../../archive/%f %p'",
		"recovery_target_name = 'before'", "recovery_target_action = 'promote'"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pg.Close(); err != nil {
			t.Error(err)
		}
	})
	d := &db{T: t, pool: newPool(t, pg.URL), schema: "box", lanes: 4}
	d.await("the server has recovered", `SELECT NOT pg_is_in_recovery()`)
	return d
}

// A logical cut-over to a newer major version: the tables
// are replicated while the old outbox works on, then the new one is adopted.
// What was settled does not return, all else does, each key in its order,
// and acts get ids that no old one has.
//
// Promises: L, O, D
func TestLogicalCutOver(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		source, target := testserver.StartPostgres(t, "15"), testserver.StartPostgres(t, version)
		d := &db{T: t, pool: newPool(t, source.URL), schema: "box", lanes: 4}
		c := &db{T: t, pool: newPool(t, target.URL), schema: "box", lanes: 4}
		if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
			t.Fatal(err)
		}
		o := d.owner("a")
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'sent before')`)
		o.want("sent before")
		copySchema(t, d, c, "--schema-only")
		replicate(d, c)

		late := d.begin()
		d.put(late, "late")
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'dead', 'dead'), ('t', 'dead', 'dead')`)
		o.parkAll(store.Dead)
		o.lease()
		asked := d.request(t)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'sent')`)
		o.want("sent")
		d.commit(late)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'pending')`)
		// Nobody writes or relays from here on.
		d.await("the new server has everything", `SELECT bool_and(confirmed_flush_lsn >= pg_current_wal_lsn()) FROM pg_replication_slots`)

		_, err := c.store("main").Lease(t.Context(), store.LeaseRequest{BootID: "b", TTL: time.Minute})
		wantIs(t, err, store.ErrUnusable)
		c.exec(`DROP SUBSCRIPTION cut_over`)
		_, err = c.store("main").Lease(t.Context(), store.LeaseRequest{BootID: "b", TTL: time.Minute})
		wantIs(t, err, store.ErrUnusable)
		if _, err := c.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Adopt: true}); err != nil {
			t.Fatal(err)
		}
		heir := c.owner("b")
		c.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'new')`)
		heir.want("late", "pending", "new")
		if again := c.request(t); again <= asked {
			t.Errorf("act %d was asked for on the old server, and %d on the new one", asked, again)
		}
	})
}

// replicate copies the tables of an outbox and keeps the copy in step: of the
// messages themselves only what is new, which is all that there is without
// retention.
func replicate(from, to *db) {
	from.Helper()
	from.exec(`CREATE PUBLICATION messages FOR TABLE box.outbox WITH (publish = 'insert')`)
	from.exec(`DO $$ BEGIN EXECUTE (SELECT 'CREATE PUBLICATION rest FOR TABLE ' || string_agg(c.oid::regclass::text, ', ') FROM pg_class c
		WHERE relnamespace = 'box'::regnamespace AND relkind = 'r' AND relname <> 'outbox'); END $$`)
	to.exec(`CREATE SUBSCRIPTION cut_over CONNECTION '` + from.pool.Config().ConnString() + `' PUBLICATION messages, rest`)
	to.await("the tables are copied", `SELECT count(*) > 0 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel`)
}

// request asks for a retry of the first record that is parked.
func (d *db) request(t *testing.T) int64 {
	t.Helper()
	s := d.store("main")
	parked, err := s.Office().Admin.Parked(t.Context(), ops.ParkedQuery{})
	if err != nil || len(parked) == 0 {
		t.Fatalf("%d parked, %v", len(parked), err)
	}
	id, err := s.Office().Admin.Request(t.Context(), store.Act{Kind: store.ActRetry, Seq: parked[len(parked)-1].Seq, Actor: "me"})
	if err != nil {
		t.Fatal(err)
	}
	return id
}
