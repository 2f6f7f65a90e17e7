package pgstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// copySchema carries a schema from one database to another as a dump does: the
// tables' contents of one snapshot, then the sequence.
func copySchema(t *testing.T, from, to *db, how ...string) {
	t.Helper()
	bin, err := testserver.PostgresBin("15")
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"pg_dump", "psql"} {
		if _, err := exec.LookPath(filepath.Join(bin, tool)); err != nil {
			testserver.GiveUp(t, &testserver.MissingError{Server: tool + " 15", Fix: "apt-get install postgresql-client-15"})
		}
	}
	dump := exec.Command(filepath.Join(bin, "pg_dump"), append(how, "--schema="+from.schema, from.pool.Config().ConnString())...)
	load := exec.Command(filepath.Join(bin, "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", to.pool.Config().ConnString())
	var dumped, loaded bytes.Buffer
	dump.Stderr, load.Stderr = &dumped, &loaded
	if load.Stdin, err = dump.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := dump.Start(); err != nil {
		t.Fatal(err)
	}
	if err := load.Run(); err != nil {
		t.Fatalf("restore: %v\n%s", err, loaded.String())
	}
	if err := dump.Wait(); err != nil {
		t.Fatalf("dump: %v\n%s", err, dumped.String())
	}
}

// An outbox that was dumped and restored into another server
// is refused until it is adopted; then everything that was not settled comes,
// each key in its order, and nothing twice, although every transaction id of
// the old server returns in the new one.
//
// Promises: L, O
func TestDumpAndRestore(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		source := testserver.StartPostgres(t, "15")
		d := &db{T: t, pool: newPool(t, source.URL), schema: "box", lanes: 4}
		if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
			t.Fatal(err)
		}
		d.exec(`SELECT setval('box.outbox_seq', 1000)`)
		o := d.owner("a")
		target := testserver.StartPostgres(t, version)
		c := &db{T: t, pool: newPool(t, target.URL), schema: "box", lanes: 4}
		// The ids of the messages below will all be given out again over there.
		there := c.count(`SELECT pg_current_xact_id()::text::bigint`)
		for d.count(`SELECT pg_current_xact_id()::text::bigint`) < there+400 {
		}
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'sent')`)
		late, bulk := d.begin(), d.begin()
		d.put(late, "late 1")
		d.do(bulk, `INSERT INTO box.outbox (topic, key, type) SELECT 't', 'bulk', g::text FROM generate_series(1, 3000) g`)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'sent too')`)
		o.want("sent", "sent too")
		d.put(late, "late 2")
		d.commit(late)
		d.commit(bulk)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'pending')`)
		lost := d.begin() // never in the dump
		d.put(lost, "uncommitted")
		copySchema(t, d, c)

		_, err := c.store("main").Lease(t.Context(), store.LeaseRequest{BootID: "b", TTL: time.Minute})
		wantIs(t, err, store.ErrUnusable)
		for _, word := range []string{"another server", "postrider migrate --adopt"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("error lacks %q: %v", word, err)
			}
		}
		c.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'written before the adoption')`)
		open := c.begin()
		c.put(open, "adopted while open")
		_, err = c.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Adopt: true, Wait: -1})
		var busy *ops.BusyError
		if !errors.As(err, &busy) {
			t.Fatalf("adopted beside a writer: %v", err)
		}
		c.commit(open)
		steps, err := c.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Adopt: true})
		if err != nil || len(steps) != 1 || steps[0].Name != "adopt" {
			t.Fatalf("adopt: %+v, %v", steps, err)
		}
		checkAdopted(t, c)
	})
}

// checkAdopted reads everything while every id of the other server is running.
func checkAdopted(t *testing.T, c *db) {
	t.Helper()
	heir := c.owner("b")
	if len(heir.grant) != 4 {
		t.Fatalf("%d lanes granted", len(heir.grant))
	}
	var open []pgx.Tx
	top := c.count(`SELECT max(xid::text::bigint) FROM box.outbox WHERE type = 'pending'`)
	for i := 0; ; i++ {
		var xid int64
		tx := c.begin()
		if err := tx.QueryRow(t.Context(), `SELECT pg_current_xact_id()::text::bigint`).Scan(&xid); err != nil {
			t.Fatal(err)
		}
		if xid < top-3 || xid > top+1 {
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if xid > top+1 {
				break
			}
			continue
		}
		open = append(open, tx)
	}
	if len(open) < 4 {
		t.Fatalf("only %d of the other server's ids run again", len(open))
	}
	var got []string
	heir.drain()
	for i, tx := range open {
		c.put(tx, fmt.Sprintf("new %d", i))
	}
	c.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'new')`)
	heir.drain()
	for _, tx := range open {
		c.commit(tx)
		heir.drain()
	}
	bulk := 0
	for _, label := range heir.seen {
		if label[0] >= '0' && label[0] <= '9' {
			bulk++
			if label != fmt.Sprint(bulk) {
				t.Fatalf("bulk message %d is %q", bulk, label)
			}
			continue
		}
		got = append(got, label)
	}
	want := []string{"late 1", "late 2", "pending", "written before the adoption", "adopted while open", "new"}
	for i := range open {
		want = append(want, fmt.Sprintf("new %d", i))
	}
	if !slices.Equal(got, want) || bulk != 3000 {
		t.Errorf("delivered %q and %d of a bulk, want %q and 3000", got, bulk, want)
	}
	if n := c.count(`SELECT count(*) FROM box.messages WHERE state <> 'Sent'`); n != 0 {
		t.Errorf("%d messages are not Sent", n)
	}
}

// A pipe that is added after the adoption takes no row of the other
// server for a straggler when its transaction id is running here.
//
// Promises: O
func TestPipeAddedAfterAdoption(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		const ids = 5000 // that other tests may use up meanwhile
		start := time.Now()
		d.exec(`INSERT INTO box.outbox (xid, topic, key, type, created_at)
			SELECT (pg_current_xact_id()::text::bigint + g)::text::xid8, 't', 'k', 'old', now() - interval '1 hour' FROM generate_series(1, $1) g`, ids)
		last := d.count(`SELECT max(xid::text::bigint) FROM box.outbox`)
		d.exec(`UPDATE box.outbox_info SET cluster = cluster + 1`)
		if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Adopt: true}); err != nil {
			t.Fatal(err)
		}
		open := d.begin()
		var xid int64
		if err := open.QueryRow(t.Context(), `SELECT pg_current_xact_id()::text::bigint`).Scan(&xid); err != nil || xid > last || xid <= last-ids {
			t.Fatalf("id %d is not one of %d before %d: %v", xid, ids, last, err)
		}
		d.add(ops.AddPipe{Actor: "ann", Name: "now"})
		d.add(ops.AddPipe{Actor: "ann", Name: "since", From: ops.FromTime, Time: start})
		if n := d.count(`SELECT count(*) FROM box.messages WHERE pipe <> 'main' AND state <> 'Sent'`); n != 0 {
			t.Errorf("%d rows of the other server are not Sent", n)
		}
		now, since := d.reader("now"), d.reader("since")
		now.want()
		d.put(open, "new")
		d.commit(open)
		now.want("new")
		since.want("new")
	})
}

// A second adoption finds nothing to do, and a lift of the
// sequence after one looks at no row of the other server, whose ids are given out
// here by then. Beside a live relay adopt is refused.
//
// Promises: O, D, Q
func TestAdoptAgain(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		const old, ids = 27, 5000 // other tests use ids up meanwhile
		d.exec(`INSERT INTO box.outbox (xid, topic, key, type)
			SELECT (pg_current_xact_id()::text::bigint + $1 + g)::text::xid8, 't', 'k', 'old' FROM generate_series(1, $2) g`, ids, old)
		d.exec(`UPDATE box.outbox_info SET cluster = cluster + 1`)
		s := d.store("main")
		adopt := func() ([]ops.Step, error) {
			return s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Adopt: true, Actor: "ann"})
		}
		if steps, err := adopt(); err != nil || len(steps) != 1 {
			t.Fatalf("first: %+v, %v", steps, err)
		}
		o.lease()
		if got := o.drain(); len(got) != old {
			t.Fatalf("%d of %d old messages", len(got), old)
		}
		d.balanced(o.store, ops.AuditRequest{})
		leave := func() {
			if _, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: o.boot, TTL: time.Minute, Leave: true}); err != nil {
				t.Fatal(err)
			}
		}
		for top := d.count(`SELECT max(xid::text::bigint) FROM box.outbox`); d.count(`SELECT pg_current_xact_id()::text::bigint`) <= top; {
		}

		look := func() string {
			var info string
			if err := d.pool.QueryRow(t.Context(), d.sql(`SELECT i::text FROM box.outbox_info i`)).Scan(&info); err != nil {
				t.Fatal(err)
			}
			return info
		}
		before := look()
		_, err := adopt()
		wantIs(t, err, store.ErrUnusable)
		if !strings.Contains(err.Error(), "alive") || !strings.Contains(err.Error(), ": a:") {
			t.Errorf("the error does not name the relay: %v", err)
		}
		leave()
		entries := d.count(`SELECT count(*) FROM box.audit WHERE act = 'adopt'`)
		steps, err := adopt()
		if err != nil || len(steps) != 0 || look() != before || d.count(`SELECT count(*) FROM box.audit WHERE act = 'adopt'`) != entries {
			t.Errorf("second: %+v, %v, %s, was %s", steps, err, look(), before)
		}
		o.lease()
		o.want()
		d.balanced(o.store, ops.AuditRequest{Full: true})

		free := d.count(`SELECT last_value FROM box.outbox_seq`)
		d.exec(`SELECT setval('box.outbox_seq', $1)`, free+1000)
		d.label("top")
		o.want("top")
		d.exec(`SELECT setval('box.outbox_seq', $1)`, free)
		d.label("below")
		leave()
		if steps, err := adopt(); err != nil || len(steps) != 1 {
			t.Errorf("set back: %+v, %v", steps, err)
		}
		if n := d.count(`SELECT count(*) FROM box.messages WHERE state <> 'Sent'`); n != 1 {
			t.Errorf("%d messages are not Sent, want the one below the cursor", n)
		}
		o.lease()
		o.want("below")
		d.balanced(o.store, ops.AuditRequest{Full: true})
		leave()
		if steps, err := adopt(); err != nil || len(steps) != 0 {
			t.Errorf("after the lift: %+v, %v", steps, err)
		}
	})
}
