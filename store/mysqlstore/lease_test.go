package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	boxdb "github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// migrated returns the URL of a database with an outbox.
func migrated(t *testing.T, server *testserver.MySQL, lanes int) string {
	t.Helper()
	url := server.Database(t)
	if _, err := New(pool(t, url), nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: lanes}); err != nil {
		t.Fatal(err)
	}
	return url
}

// An instance that joins and takes lanes between any two statements of another one's heartbeat keeps
// these lanes: it lives.
//
// Promises: D
func TestAnInstanceThatJoinsKeepsItsLanes(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		url := migrated(t, server, 4)
		joined := New(pool(t, url), nil)
		statements, at := 0, 0
		var held []store.LaneGrant
		db := hooked(t, url, func(string) {
			if statements++; statements == at {
				held = lease(t, joined, fmt.Sprint("joined", at)).Lanes
			}
		})
		db.SetMaxOpenConns(1)
		taken := 0
		for at = 1; ; at++ {
			statements, held = 0, nil
			boot := fmt.Sprint("first", at)
			s := New(db, nil)
			lease(t, s, boot)
			if statements < at {
				break
			}
			taken += len(held)
			for _, l := range held {
				owner, err := list[string](t.Context(), joined.box.DB, `SELECT owner FROM postrider_progress WHERE lane = ? AND epoch = ?`, l.Lane, l.Epoch)
				if err != nil || len(owner) != 1 || owner[0] != fmt.Sprint("joined", at) {
					t.Errorf("before statement %d: lane %d has the owners %v, error %v", at, l.Lane, owner, err)
				}
			}
			for i, who := range []*Store{s, joined} {
				if _, err := who.Lease(t.Context(), store.LeaseRequest{BootID: []string{boot, fmt.Sprint("joined", at)}[i], TTL: time.Minute, Leave: true}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if at < 10 || taken < 10 {
			t.Errorf("%d statements, %d lanes taken", at, taken)
		}
	})
}

// parkEach parks a record of a key of its own in many lanes, and returns the key of each lane.
func parkEach(t *testing.T, s *Store, boot string) map[store.Lane]string {
	t.Helper()
	captured := map[store.Lane]string{}
	for i := range 40 {
		if _, err := s.box.DB.ExecContext(t.Context(), "INSERT INTO postrider_outbox (topic, `key`) VALUES ('t', ?)", fmt.Sprint("k", i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range lease(t, s, boot).Lanes {
		b, err := s.Read(t.Context(), []store.LaneRead{{Lane: l.Lane, MaxRecords: 100}})
		if err != nil {
			t.Fatal(err)
		}
		st := store.Settlement{BootID: boot, Lane: l.Lane, Epoch: l.Epoch, Position: b[0].Position}
		for i, m := range b[0].Messages {
			st.Park = append(st.Park, store.Park{Seq: b[0].Meta[i].Seq, Message: m, State: store.Retry, Captures: true, DueIn: time.Hour})
			captured[l.Lane] = m.Key
		}
		if lost, err := s.Settle(t.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
			t.Fatal(lost, err)
		}
	}
	if _, err := s.Lease(t.Context(), store.LeaseRequest{BootID: boot, TTL: time.Minute, Leave: true}); err != nil {
		t.Fatal(err)
	}
	return captured
}

// Wherever a heartbeat ends, no lane is granted without its view.
//
// Promises: O
func TestNoLaneIsGrantedWithoutItsView(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		url := migrated(t, server, 8)
		captured := parkEach(t, New(pool(t, url), nil), "before")
		statements, at, cut := 0, 0, func() {}
		db := hooked(t, url, func(string) {
			if statements++; statements == at {
				cut()
			}
		})
		granted := 0
		for at = 1; ; at++ {
			// It holds a lane, whose epoch moves by a settlement of its own, and takes the others.
			boot, s := fmt.Sprint("b", at), New(db, nil)
			statements, cut = 0, func() {}
			g, err := s.Lease(t.Context(), store.LeaseRequest{BootID: boot, TTL: time.Minute, MaxLanes: 1})
			if err != nil || len(g.Lanes) != 1 {
				t.Fatalf("grant %+v, error %v", g, err)
			}
			one := g.Lanes[0]
			if lost, err := s.Settle(t.Context(), []store.Settlement{{BootID: boot, Lane: one.Lane, Epoch: one.Epoch, Position: one.Position}}); err != nil || len(lost) > 0 {
				t.Fatal(lost, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			statements, cut = 0, cancel
			g, err = s.Lease(ctx, store.LeaseRequest{BootID: boot, TTL: time.Minute, Known: map[store.Lane]int64{one.Lane: one.Epoch}})
			all := statements < at
			cut = func() {}
			cancel()
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("cut at statement %d: %v", at, err)
			}
			for _, l := range g.Lanes {
				if granted++; !l.Known && captured[l.Lane] != "" && len(l.Parked.Captured) == 0 {
					t.Errorf("cut at statement %d: lane %d is granted without its captured keys, error %v", at, l.Lane, err)
				}
				if l.Known && l.Lane != one.Lane {
					t.Errorf("cut at statement %d: lane %d is new and needs no view", at, l.Lane)
				}
			}
			if _, err := s.Lease(t.Context(), store.LeaseRequest{BootID: boot, TTL: time.Minute, Leave: true}); err != nil {
				t.Fatal(err)
			}
			if all {
				if len(g.Lanes) != 8 {
					t.Errorf("%d lanes at the end", len(g.Lanes))
				}
				break
			}
		}
		if granted == 0 || len(captured) < 2 {
			t.Fatalf("%d lanes granted, %d have captured keys", granted, len(captured))
		}
	})
}

// Views that take longer than a heartbeat cost neither the heartbeat nor the lanes that are held: the
// server ends their statements, and the other lanes follow when it is faster.
//
// Promises: S
func TestSlowViewsCostNoHeartbeat(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		url := migrated(t, server, 4)
		db := pool(t, url)
		s := New(db, nil)
		const ttl = 2 * time.Second
		beat := func(known map[store.Lane]int64, most int) store.Grant {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			g, err := s.Lease(ctx, store.LeaseRequest{BootID: "a", TTL: ttl, MaxLanes: most, Known: known})
			if ctx.Err() != nil {
				t.Error("the heartbeat took all of its time")
			}
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		one := beat(nil, 1).Lanes[0]
		known := map[store.Lane]int64{one.Lane: one.Epoch}
		for i := range int64(3) {
			if lost, err := s.Settle(t.Context(), []store.Settlement{{BootID: "a", Lane: one.Lane, Epoch: one.Epoch + i, Position: one.Position}}); err != nil || len(lost) > 0 {
				t.Fatal(lost, err)
			}
		}
		locker, _ := connection(t, db)
		if _, err := locker.ExecContext(t.Context(), `LOCK TABLES postrider_parked WRITE`); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if g := beat(known, 0); len(g.Lanes) != 1 || g.Lanes[0].Lane != one.Lane || !g.Lanes[0].Known {
				t.Errorf("while no view can be read the grant is %+v", g.Lanes)
			}
		}
		// An answer may still be on its way.
		waitFor(t, "no statement is left at work", func() bool {
			running, err := list[int](t.Context(), locker, `SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND COMMAND <> 'Sleep' AND ID <> CONNECTION_ID()`)
			return err == nil && running[0] == 0
		})
		if _, err := locker.ExecContext(t.Context(), `UNLOCK TABLES`); err != nil {
			t.Fatal(err)
		}
		got := 0
		for beats := 0; got < 4 && beats < 10; beats++ {
			got = len(beat(known, 0).Lanes)
		}
		if got != 4 {
			t.Errorf("%d lanes when views can be read again", got)
		}
	})
}

// Open pages of orders hold up neither acts nor other pages.
//
// Promises: S
func TestActsWaitBehindNoPages(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		ctx := t.Context()
		db := newOutbox(t, server, 4)
		s := New(db, nil)
		for kind, upto := range map[string]string{"retry-many": "100", "retry": "NULL"} { // pages, and acts in lane 3
			_, err := db.ExecContext(ctx, `INSERT INTO postrider_act (pipe, lane, seq, upto, kind, actor, reason, created_at)
				WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
				SELECT 'main', CASE WHEN ? = 'retry' THEN 3 ELSE a.i % 3 END, 1, `+upto+`, ?, 'a', 'r', 0 FROM n AS a JOIN (SELECT 1 UNION ALL SELECT 2) AS b`, kind, kind)
			if err != nil {
				t.Fatal(err)
			}
		}
		id, err := s.Office().Admin.Request(ctx, store.Act{Kind: store.ActPause, Lane: 1, Actor: "a", Reason: "r"})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int64]bool{}
		for range 5 {
			g, err := s.Lease(ctx, store.LeaseRequest{BootID: "a", TTL: time.Minute, Only: []store.Lane{0, 1, 2}})
			if err != nil {
				t.Fatal(err)
			}
			last, pages := int64(0), 0
			for _, r := range g.Requests {
				if r.ID < last || r.Act.Lane == 3 {
					t.Errorf("request %d of lane %d behind %d", r.ID, r.Act.Lane, last)
				}
				if last = r.ID; r.Kind == store.ActRetry {
					pages++
					seen[r.ID] = true
				}
			}
			if last != id || pages == 0 || pages > pagesPerTurn {
				t.Errorf("the last request is %d, want %d; %d pages", last, id, pages)
			}
		}
		if len(seen) <= pagesPerTurn {
			t.Errorf("the same %d pages each time", len(seen))
		}
	})
}

// A view, and a read of what is due, look at each record a few times, whether its queue or its lack of a
// key is shared with thousands.
//
// Promises: S
func TestViewsLookAtEachRecordAFewTimes(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		const n, each = 2500, 100
		for _, c := range []struct{ name, key, state, captures string }{
			{"without a key", "''", "'retry'", "0"},
			{"scheduled", "''", "'scheduled'", "0"},
			{"in one queue", "'k'", "CASE WHEN a.i = 1 THEN 'retry' ELSE 'waiting' END", "a.i = 1"},
			{"in queues of their own", "CONCAT('k', a.i * 50 + b.i)", "'retry'", "1"},
		} {
			db := newOutbox(t, server, 1)
			db.SetMaxOpenConns(1) // the counters are the session's
			_, err := db.ExecContext(t.Context(), "INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error, last_attempt, id, topic, `key`, type, payload, content_type, headers, version, schema_version, created_at)"+
				" WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 50)"+
				" SELECT 'main', a.i * 50 + b.i, 0, "+c.state+", "+c.captures+", "+boxdb.Now+" + 3600000000, 1, 'c', 'c', 'e', 0, UUID(), 't', "+c.key+", '', '', '', '{}', 0, 0, 0 FROM r AS a JOIN r AS b")
			if err != nil {
				t.Fatal(err)
			}
			s := New(db, nil)
			reads := func(what string, fn func() error) {
				t.Helper()
				before := handlerReads(t, db)
				if err := fn(); err != nil {
					t.Fatal(err)
				}
				if got := handlerReads(t, db) - before; got > n*each {
					t.Errorf("%s: %s reads %d rows, %d of each", c.name, what, got, got/n)
				}
			}
			reads("a lease", func() error {
				g, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Hour})
				if err == nil && (len(g.Lanes) != 1 || g.Lanes[0].Parked.Records != n) {
					t.Errorf("%s: granted %d lanes", c.name, len(g.Lanes))
				}
				return err
			})
			for what, keys := range map[string][]string{"a read": nil, "a read by keys": {"k"}} {
				reads(what, func() error {
					_, err := s.Read(t.Context(), []store.LaneRead{{Lane: 0, MaxRecords: 10, Parked: true, Keys: keys}})
					return err
				})
			}
		}
	})
}

// handlerReads is how many rows the session has read, those of temporary tables included.
func handlerReads(t *testing.T, db *sql.DB) (sum int64) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SHOW SESSION STATUS LIKE 'Handler_%'`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var n int64
		if err := rows.Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(name, "Handler_read") || strings.HasPrefix(name, "Handler_tmp") {
			sum += n
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return sum
}
