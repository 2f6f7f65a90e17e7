package sqlitestore

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

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
// when, what and why; also one that a program without a journal has stored. Requests keep their
// numbers over the upgrade and back.
//
// Promises: C
func TestJournal(t *testing.T) {
	pool := openFile(t, filepath.Join(t.TempDir(), "shop.db"))
	migrator := New(pool, nil).Office().Migrator
	migrate := func(req ops.MigrateRequest) {
		t.Helper()
		if _, err := migrator.Migrate(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	migrate(ops.MigrateRequest{Lanes: 1, Target: 9})
	c := carry(t, pool)
	c.exec(`INSERT INTO postrider_request (id, pipe, lane, seq, kind, actor, reason, created_at) VALUES (41, 'main', 0, 1, 'retry', ' ', 'before', 0), (42, 'main', 0, 9, 'retry', 'gone', 'before', 0)`)
	c.exec(`DELETE FROM postrider_request WHERE id = 42`)
	migrate(ops.MigrateRequest{})
	o := newOwner(t, pool, "a", nil)
	for _, key := range []string{"old", "k", "j"} {
		o.dead(1, 0, key)
	}
	office := o.s.Office()
	for i, act := range []store.Act{
		{Kind: store.ActRetry, Seq: 2, Actor: "ann", Reason: "mended"},
		{Kind: store.ActDiscard, Seq: 3, Actor: "bob", Reason: "nobody wants it"},
		{Kind: store.ActDiscard, Seq: 3, Actor: " "},
		{Kind: store.ActPause, Key: "k", Actor: "ann", Reason: "night"},
	} {
		if id, err := office.Admin.Request(t.Context(), act); err != nil || id != int64(43+i) {
			t.Fatalf("request %d, %v", id, err)
		}
	}
	o.execute()
	want(t, "the journal", entries(t, o.s, ops.JournalQuery{}),
		"ann retry k asked - mended", "bob discard j asked - nobody wants it", "unknown discard j asked -", "ann pause k asked - night",
		"unknown retry old done 1 before", "ann retry k done 1 mended", "bob discard j done 1 nobody wants it", "unknown discard  gone 0", "ann pause k done - night")
	of, err := office.Journal.Entries(t.Context(), ops.JournalQuery{ID: 2})
	if err != nil || len(of) != 2 || of[0].Ask != 2 || of[1].ID != 2 || of[1].Ask != 0 || of[0].Seq != 3 || of[0].Lane == nil || *of[0].Lane != 0 || of[0].Pipe != "main" || time.Since(of[0].At).Abs() > time.Hour {
		t.Errorf("entry 2 and what came of it: %+v, %v", of, err)
	}
	for _, q := range []struct {
		q    ops.JournalQuery
		want int
	}{
		{ops.JournalQuery{Actor: "bob"}, 2},
		{ops.JournalQuery{Act: "retry"}, 3},
		{ops.JournalQuery{Key: "j"}, 3},
		{ops.JournalQuery{Pipe: "other"}, 0},
		{ops.JournalQuery{Before: 3}, 2},
		{ops.JournalQuery{Limit: 1}, 1},
		{ops.JournalQuery{Since: time.Now().Add(time.Hour)}, 0},
		{ops.JournalQuery{Since: time.Now().Add(-time.Hour)}, 9},
	} {
		if got := entries(t, o.s, q.q); len(got) != q.want {
			t.Errorf("%+v: %q", q.q, got)
		}
	}
	if _, err := office.Records.Record(t.Context(), ops.JournalEntry{Actor: "ann", Act: "read payload", Reason: " "}); err == nil || !strings.Contains(err.Error(), "give all three") {
		t.Errorf("an entry without a reason: %v", err)
	}
	id, err := office.Records.Record(t.Context(), ops.JournalEntry{Actor: "ann", Act: "read payload", Pipe: "other", Seq: 7, Reason: "a customer asks", Target: []byte(`{"a": 1}`)})
	if err != nil {
		t.Fatal(err)
	}
	found, err := office.Journal.Entries(t.Context(), ops.JournalQuery{Act: "read payload"})
	if err != nil || len(found) != 1 || found[0].ID != id || found[0].Pipe != "main" || found[0].Seq != 7 || found[0].Lane != nil || found[0].Result != "done" || string(found[0].Target) != `{"a": 1}` {
		t.Errorf("%+v, %v", found, err)
	}
	migrate(ops.MigrateRequest{Target: 9})
	if n := o.number(`SELECT count(*) FROM postrider_request WHERE kind IN ('retry', 'discard') AND done_at IS NOT NULL`); n != 4 {
		t.Errorf("%d requests of the version before are left, want 4", n)
	}
	if n := o.number(`SELECT seq FROM sqlite_sequence WHERE name = 'postrider_request'`); n != 46 {
		t.Errorf("the numbers of requests continue behind %d, want 46", n)
	}
}

// Promises: C
func TestJournalIsAppendOnly(t *testing.T) {
	pool, s := newOutbox(t, 1)
	try := func(query string, args ...any) error {
		_, err := pool.ExecContext(t.Context(), query, args...)
		return err
	}
	if err := try(`INSERT INTO postrider_journal (at, actor, act, reason) VALUES (?, 'ann', 'young', ''), (0, 'ann', 'old', '')`, time.Now().UnixMicro()); err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{
		`UPDATE postrider_journal SET reason = 'x'`, `DELETE FROM postrider_journal WHERE act = 'young'`,
		`INSERT OR REPLACE INTO postrider_journal (id, at, actor, act, reason) SELECT id, 1, 'bob', 'forged', '' FROM postrider_journal WHERE act = 'young'`,
	} {
		if err := try(query); err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("%s: %v", query, err)
		}
	}
	if err := try(`INSERT INTO postrider_journal (at, actor, act, reason) VALUES (0, '', 'nobody', '')`); err == nil {
		t.Error("an act without an actor was recorded")
	}
	done, err := s.Office().Retention.Tidy(t.Context(), ops.TidyRequest{Journal: time.Second})
	if err != nil || done["journal"] != 1 {
		t.Errorf("tidied %v, %v, want the old entry", done, err)
	}
}
