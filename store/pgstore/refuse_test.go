package pgstore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// What would lose messages in silence is refused by the next heartbeat, with the
// statement that repairs it.
func TestLeaseRefusesWhatLosesMessages(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		schema := `"` + d.schema + `"`
		spoils := []struct{ spoil, mend, fix string }{
			{`ALTER SEQUENCE box.outbox_seq CACHE 10`, `ALTER SEQUENCE box.outbox_seq CACHE 1`, "ALTER SEQUENCE " + schema + ".outbox_seq CACHE 1"},
			{`ALTER SEQUENCE box.outbox_seq CYCLE`, `ALTER SEQUENCE box.outbox_seq NO CYCLE`, "NO CYCLE"},
			{`ALTER TABLE box.outbox SET UNLOGGED`, `ALTER TABLE box.outbox SET LOGGED`, "ALTER TABLE " + schema + `."outbox" SET LOGGED`},
			{`ALTER TABLE box.parked SET UNLOGGED`, `ALTER TABLE box.parked SET LOGGED`, "ALTER TABLE " + schema + `."parked" SET LOGGED`},
			{`ALTER SEQUENCE box.outbox_seq SET UNLOGGED`, `ALTER SEQUENCE box.outbox_seq SET LOGGED`, "ALTER SEQUENCE " + schema + `."outbox_seq" SET LOGGED`},
			{`ALTER TABLE box.key_version SET UNLOGGED`, `ALTER TABLE box.key_version SET LOGGED`, "ALTER TABLE " + schema + `."key_version" SET LOGGED`},
			{"", "", ""}, // from here on in partitions
			{`ALTER TABLE box.outbox_p2 SET UNLOGGED`, `ALTER TABLE box.outbox_p2 SET LOGGED`, "ALTER TABLE " + schema + `."outbox_p2" SET LOGGED`},
		}
		for _, c := range spoils {
			if c.spoil == "" {
				d.convert()
				continue
			}
			d.exec(c.spoil)
			_, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute})
			wantIs(t, err, store.ErrUnusable)
			if !strings.Contains(err.Error(), c.fix) {
				t.Errorf("after %s: error lacks %q: %v", c.spoil, c.fix, err)
			}
			d.exec(c.mend)
			o.lease()
		}
	})
}

// An operator's role that row security keeps from rows is told so, not that
// there are none.
func TestAdminRefusesRowSecurity(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		role := strings.ToLower(d.schema) + "_ops"
		d.role(role)
		s := pgstore.New(d.as(role), &pgstore.Options{Schema: d.schema})
		for _, c := range []struct {
			table string
			call  func() error
		}{
			{"outbox", func() error { _, err := s.Office().Admin.Status(t.Context()); return err }},
			{"parked", func() error { _, err := s.Office().Admin.Status(t.Context()); return err }},
			{"parked", func() error { _, err := s.Office().Admin.Parked(t.Context(), ops.ParkedQuery{}); return err }},
			{"parked", func() error {
				_, err := s.Office().Admin.Request(t.Context(), store.Act{Seq: 1, Kind: store.ActRetry})
				return err
			}},
			{"request", func() error { _, err := s.Office().Admin.Acts(t.Context(), 1); return err }},
		} {
			d.exec(`ALTER TABLE box.` + c.table + ` ENABLE ROW LEVEL SECURITY`)
			err := c.call()
			wantIs(t, err, store.ErrUnusable)
			if want := "row security on " + d.schema + "." + c.table; !strings.Contains(err.Error(), want) {
				t.Errorf("error lacks %q: %v", want, err)
			}
			d.exec(`ALTER TABLE box.` + c.table + ` DISABLE ROW LEVEL SECURITY`)
			if err := c.call(); err != nil && !errors.Is(err, store.ErrNotFound) {
				t.Errorf("without row security: %v", err)
			}
		}
	})
}

// An instance that died before the database's clock was set back does not keep its
// lanes until the clock has caught up.
func TestClockSetBack(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`UPDATE box.relay SET alive_until = alive_until + interval '1 hour'`)
		st, err := o.store.Office().Admin.Status(t.Context())
		if err != nil || len(st.Instances) != 1 || st.Instances[0].Alive {
			t.Errorf("status: %+v, %v", st.Instances, err)
		}
		g := mustLease(t, d.store("main"), store.LeaseRequest{BootID: "b", TTL: time.Second})
		if len(g.Lanes) != d.lanes || g.Instances != 1 {
			t.Errorf("%d lanes of %d, %d instances", len(g.Lanes), d.lanes, g.Instances)
		}
	})
}

// A thousand acts for a lane that nobody owns keep back no other lane's.
func TestActsOfOneLaneKeepBackNoOther(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.request (pipe, lane, seq, kind) SELECT 'main', 0, g, 'retry' FROM generate_series(1, 1001) g`)
		d.exec(`INSERT INTO box.request (pipe, lane, seq, kind) VALUES ('main', 1, 1, 'retry')`)
		g := mustLease(t, o.store, store.LeaseRequest{BootID: "a", TTL: time.Minute, Release: []store.Release{{Lane: 0, Epoch: o.grant[0].Epoch}}, Observe: true})
		if len(g.Requests) != 1 || g.Requests[0].Lane != 1 {
			t.Errorf("%d requests of 1", len(g.Requests))
		}
	})
}

func TestExecutedActsArePruned(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.request (pipe, lane, seq, kind, done_at) VALUES ('main', 0, 1, 'retry', now() - interval '8 days'),
			('main', 0, 2, 'retry', now() - interval '6 days'), ('main', 0, 3, 'retry', NULL)`)
		for i := range 100 {
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, fmt.Sprint(i))
			o.step()
		}
		if n := d.count(`SELECT count(*) FROM box.request WHERE seq = 1`); n != 0 {
			t.Error("an act executed 8 days ago is kept")
		}
		if n := d.count(`SELECT count(*) FROM box.request`); n != 2 {
			t.Errorf("%d acts, want those of the last week and those that wait", n)
		}
	})
}

// A NULL names its own column, not the lane computed from it.
func TestNullNamesItsColumn(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		for _, column := range []string{"id", "key", "topic", "payload"} {
			_, err := d.pool.Exec(t.Context(), d.sql(`INSERT INTO box.outbox (topic, key, id, payload) SELECT
				CASE WHEN $1 <> 'topic' THEN 't' END, CASE WHEN $1 <> 'key' THEN 'k' END,
				CASE WHEN $1 <> 'id' THEN gen_random_uuid() END, CASE WHEN $1 <> 'payload' THEN ''::bytea END`), column)
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Code != "23502" || pg.ColumnName != column {
				t.Errorf("NULL in %s: %v", column, err)
			}
		}
	})
}
