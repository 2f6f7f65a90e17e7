package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// deadLetter makes a record that no relay has read.
const deadLetter = "INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error, id, topic, `key`, type, payload, content_type, headers, version, schema_version, created_at)" +
	" VALUES ('main', 1, 0, 'dead', 0, 0, 3, 'rejected', 'TOO_LARGE', '', 'x', 't', '', '', '', '', '{}', 0, 0, 0)"

// bury makes a dead letter of a key in lane 0.
func bury(t *testing.T, db *sql.DB, seq int64, key string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), strings.Replace(strings.Replace(deadLetter, "'main', 1,", "'main', ?,", 1), "'t', '', ''", "'t', ?, ''", 1), seq, []byte(key))
	if err != nil {
		t.Fatal(err)
	}
}

// carryOut executes all acts that wait, twice with each epoch: as after an unknown outcome.
func carryOut(t *testing.T, s *Store) {
	t.Helper()
	g := lease(t, s, "a")
	for _, r := range g.Requests {
		st := store.Settlement{BootID: "a", Lane: r.Lane, Epoch: g.Lanes[r.Lane].Epoch, Requests: []int64{r.ID}}
		for range 2 {
			if lost, err := s.Settle(t.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
				t.Fatalf("lost %v, error %v", lost, err)
			}
		}
		g = lease(t, s, "a")
	}
}

// entries are the journal in short, the oldest entry first.
func entries(t *testing.T, s *Store, q ops.JournalQuery) (said []string) {
	t.Helper()
	found, err := s.Office().Journal.Entries(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range found {
		count := "-"
		if e.Count != nil {
			count = fmt.Sprint(*e.Count)
		}
		said = append(said, strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s %s", e.Actor, e.Act, e.Key, e.Result, count, e.Reason)))
	}
	slices.Reverse(said)
	return said
}

// Every act is in the journal, when it is asked for and when it is carried out, with who,
// when, what and why; also one that a program without a journal has stored.
//
// Promises: C
func TestJournal(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newDB(t, server)
		s := New(db, nil)
		office := s.Office()
		if _, err := office.Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: testLanes, Target: 2}); err != nil {
			t.Fatal(err)
		}
		bury(t, db, 1, "old")
		long := strings.Repeat("é", 300)
		for _, actor := range []string{"", "  ", long} {
			_, err := db.ExecContext(t.Context(), `INSERT INTO postrider_request (pipe, lane, seq, kind, actor, reason, created_at) VALUES ('main', 0, 1, 'retry', ?, 'before', 0)`, actor)
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := office.Migrator.Migrate(t.Context(), ops.MigrateRequest{}); err != nil {
			t.Fatal(err)
		}
		bury(t, db, 2, "k")
		bury(t, db, 3, "j")
		for _, act := range []store.Act{
			{Kind: store.ActRetry, Seq: 2, Actor: "ann", Reason: "mended"},
			{Kind: store.ActDiscard, Seq: 3, Actor: "bob", Reason: "nobody wants it"},
			{Kind: store.ActDiscard, Seq: 3, Actor: " "},
		} {
			if _, err := office.Admin.Request(t.Context(), act); err != nil {
				t.Fatal(err)
			}
		}
		carryOut(t, s)
		want := []string{
			"ann retry k asked - mended", "bob discard j asked - nobody wants it", "unknown discard j asked -",
			"unknown retry old done 1 before", "unknown retry old done 1 before", long + " retry old done 1 before",
			"ann retry k done 1 mended", "bob discard j done 1 nobody wants it", "unknown discard  gone 0",
		}
		if got := entries(t, s, ops.JournalQuery{}); !slices.Equal(got, want) {
			t.Errorf("the journal says\n%q, want\n%q", got, want)
		}
		of, err := office.Journal.Entries(t.Context(), ops.JournalQuery{ID: 2})
		if err != nil || len(of) != 2 || of[0].Ask != 2 || of[1].ID != 2 || of[1].Ask != 0 || of[0].Seq != 3 || of[0].Lane == nil || *of[0].Lane != 0 || of[0].Pipe != "main" || time.Since(of[0].At).Abs() > time.Hour {
			t.Errorf("entry 2 and what came of it: %+v, %v", of, err)
		}
		for _, c := range []struct {
			q    ops.JournalQuery
			want int
		}{
			{ops.JournalQuery{Actor: "bob"}, 2},
			{ops.JournalQuery{Actor: "bob "}, 0},
			{ops.JournalQuery{Act: "retry"}, 5},
			{ops.JournalQuery{Key: "j"}, 3},
			{ops.JournalQuery{Pipe: "other"}, 0},
			{ops.JournalQuery{Before: 3}, 2},
			{ops.JournalQuery{Limit: 1}, 1},
			{ops.JournalQuery{Since: time.Now().Add(time.Hour)}, 0},
			{ops.JournalQuery{Since: time.Now().Add(-time.Hour)}, 9},
		} {
			if got := entries(t, s, c.q); len(got) != c.want {
				t.Errorf("%+v: %q", c.q, got)
			}
		}
		for _, bad := range []ops.JournalEntry{{Act: "read payload", Reason: "r"}, {Actor: "ann", Reason: "r"}, {Actor: "ann", Act: "read payload", Reason: " "}} {
			if _, err := office.Records.Record(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "give all three") {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		id, err := office.Records.Record(t.Context(), ops.JournalEntry{Actor: "ann", Act: "read payload", Pipe: "other", Seq: 7, Reason: "a customer asks", Target: []byte(`{"a": 1}`)})
		if err != nil {
			t.Fatal(err)
		}
		found, err := office.Journal.Entries(t.Context(), ops.JournalQuery{Act: "read payload"})
		if err != nil || len(found) != 1 || found[0].ID != id || found[0].Pipe != "main" || found[0].Seq != 7 || found[0].Lane != nil || found[0].Result != "done" || string(found[0].Target) != `{"a": 1}` {
			t.Errorf("%+v, %v", found, err)
		}
		for _, query := range []string{`UPDATE postrider_progress SET pos = 1000000`, `DELETE FROM postrider_relay`} {
			if _, err := db.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := office.Migrator.Migrate(t.Context(), ops.MigrateRequest{Adopt: true, Actor: "ann"}); err != nil {
			t.Fatal(err)
		}
		if got := entries(t, s, ops.JournalQuery{Act: "adopt"}); !slices.Equal(got, []string{"ann adopt  done -"}) {
			t.Errorf("%q", got)
		}
	})
}

// userOf opens the database of a URL as a user who has only these privileges: %s is its database.
func userOf(t *testing.T, admin *sql.DB, address, name string, privileges ...string) *sql.DB {
	t.Helper()
	database := address[strings.LastIndex(address, "/")+1:]
	name += "_" + database[2:]
	account := name + "@'127.0.0.1'"
	queries := []string{"CREATE USER " + account}
	for _, p := range privileges {
		queries = append(queries, "GRANT "+strings.ReplaceAll(p, "%s", database)+" TO "+account)
	}
	for _, query := range queries {
		if _, err := admin.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _, _ = admin.ExecContext(context.WithoutCancel(t.Context()), "DROP USER "+account) })
	return pool(t, strings.Replace(address, "root@", name+"@", 1))
}

// A user who may make no triggers gets a journal all the same, and it is guarded once
// somebody migrates who may.
//
// Promises: C
func TestJournalIsMadeWithoutTriggers(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		for _, c := range []struct {
			name   string
			grants []string
			denied uint16
		}{
			{"without-TRIGGER", []string{"SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, CREATE VIEW ON %s.*", "SUPER ON *.*"}, errTableDenied},
			{"with-a-binary-log", []string{"ALL ON %s.*"}, 1419},
		} {
			t.Run(c.name, func(t *testing.T) {
				address := server.Database(t)
				admin := pool(t, address)
				owner := userOf(t, admin, address, "owner", c.grants...)
				migrate := func(db *sql.DB) {
					t.Helper()
					if _, err := New(db, nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 1}); err != nil {
						t.Fatal(err)
					}
				}
				change := func() error {
					_, err := admin.ExecContext(t.Context(), `UPDATE postrider_journal SET reason = 'x'`)
					return err
				}
				migrate(owner)
				if _, err := owner.ExecContext(t.Context(), guards()[0]); code(err) != c.denied {
					t.Fatalf("the user may make triggers: %v", err)
				}
				if _, err := New(owner, nil).Office().Records.Record(t.Context(), ops.JournalEntry{Actor: "ann", Act: "read payload", Reason: "test"}); err != nil {
					t.Error(err)
				}
				if err := change(); err != nil {
					t.Error(err)
				}
				migrate(admin)
				if err := change(); err == nil || !strings.Contains(err.Error(), "append-only") {
					t.Errorf("after a migration by a user who may: %v", err)
				}
				migrate(owner)
			})
		}
	})
}

// An act can be asked for where the server logs statements.
func TestActsAreAskedForWithABinaryLogOfStatements(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		address := server.Database(t)
		db := pool(t, address)
		if _, err := New(db, nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 1}); err != nil {
			t.Fatal(err)
		}
		bury(t, db, 1, "k")
		logged := applicationDB(t, address, "", func(c *mysql.Config) { c.Params = map[string]string{"binlog_format": "'STATEMENT'"} })
		if _, err := New(logged, nil).Office().Admin.Request(t.Context(), store.Act{Kind: store.ActRetry, Seq: 1, Actor: "ann"}); err != nil {
			t.Error(err)
		}
	})
}

// Promises: C
func TestJournalIsAppendOnly(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		try := func(query string) error {
			_, err := db.ExecContext(t.Context(), query)
			return err
		}
		if err := try(`INSERT INTO postrider_journal (at, actor, act, reason) VALUES (` + now + `, 'ann', 'young', ''), (0, 'ann', 'old', '')`); err != nil {
			t.Fatal(err)
		}
		for _, query := range []string{`UPDATE postrider_journal SET reason = 'x'`, `DELETE FROM postrider_journal WHERE act = 'young'`} {
			if err := try(query); err == nil || !strings.Contains(err.Error(), "append-only") {
				t.Errorf("%s: %v", query, err)
			}
		}
		if err := try(`INSERT INTO postrider_journal (actor, act, reason) VALUES ('', 'nobody', '')`); err == nil {
			t.Error("an act without an actor was recorded")
		}
		if err := try(`DELETE FROM postrider_journal WHERE act = 'old'`); err != nil {
			t.Error(err)
		}
	})
}
