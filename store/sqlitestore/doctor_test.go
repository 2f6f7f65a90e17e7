package sqlitestore

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Each thing that can be wrong with a file is found, and gone when it was repaired.
func TestDoctor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	db := openFile(t, path)
	s := New(db, nil)
	ill := func(check, word string) *ops.Finding {
		t.Helper()
		all, err := s.Office().Doctor.Examine(t.Context(), ops.ExamineRequest{Only: []string{check}})
		if err != nil || len(all) == 0 {
			t.Fatalf("%s: %d findings, %v", check, len(all), err)
		}
		for _, f := range all {
			if f.Severity != ops.OK && strings.Contains(f.What, word) {
				if f.Severity != ops.Skipped && (f.Why == "" || f.Fix == "") || f.Check != check {
					t.Errorf("%+v", f)
				}
				return &f
			}
		}
		return nil
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	lease := func(leave bool) {
		t.Helper()
		if _, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", Instance: "a", TTL: time.Minute, Leave: leave}); err != nil {
			t.Fatal(err)
		}
	}
	migrate := func() {
		t.Helper()
		if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
			t.Fatal(err)
		}
	}
	if ill("schema", "no outbox") == nil {
		t.Error("a file without an outbox is not found")
	}
	if f := ill("relays", "see the check \"schema\""); f == nil || f.Severity != ops.Skipped {
		t.Errorf("without an outbox the relays are %+v, want skipped", f)
	}
	migrate()
	if f := ill("relays", ""); f != nil {
		t.Errorf("where no message waits no relay is missing: %+v", f)
	}
	exec(`INSERT INTO postrider_outbox (topic, key) VALUES ('orders', 'k')`)
	for _, c := range []struct {
		check, word   string
		provoke, mend func()
	}{
		{"relays", "0 relays live", func() {}, func() { lease(false) }},
		{"relays", "0 relays live", func() { lease(true) }, func() { lease(false) }},
		{"relays", "relay a sends nothing to the destination orders: UNKNOWN_TOPIC: no such topic", func() {
			held := []store.Held{{Destination: "orders", Since: time.Now(), Code: "UNKNOWN_TOPIC", Error: "no such topic"}}
			req := store.LeaseRequest{BootID: "a", Instance: "a", TTL: time.Minute, Report: store.Report{Held: held}}
			if _, err := s.Lease(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}, func() { lease(false) }},
		{"parked", "1 message is dead (rejected TOO_LARGE), the first is 1", func() {
			for i, state := range []string{"dead", "waiting", "waiting"} {
				exec(fmt.Sprintf(`INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error, id, topic, key, type, payload, content_type, headers, version, schema_version, created_at)
					VALUES ('main', %d, 0, '%s', %v, 0, 1, 'rejected', 'TOO_LARGE', 'x', '', 'orders', 'k', '', x'', '', '{}', 0, 0, 0)`, i+1, state, i == 0))
			}
			if f := ill("parked", "dead"); f == nil || f.Why != "1 key is blocked by dead letters, with 2 messages" {
				t.Errorf("%+v", f)
			}
		}, func() { exec(`DELETE FROM postrider_parked`) }},
		{"pipes", "1 lane and 1 key of pipe \"main\" are paused by people, the first for 1m0s", func() {
			exec(fmt.Sprintf(`INSERT INTO postrider_hold (pipe, lane, key, at) VALUES ('main', 1, '', %[1]d), ('main', 2, 'k', %[1]d)`, time.Now().Add(-time.Minute).UnixMicro()))
		}, func() { exec(`DELETE FROM postrider_hold`) }},
		{"pipes", "pipe \"main\" was paused by ann", func() {
			exec(`UPDATE postrider_pipe SET paused_at = 1, paused_by = 'ann', pause_reason = 'night'`)
		}, func() { exec(`UPDATE postrider_pipe SET paused_at = NULL`) }},
		{"pipes", "endpoint \"hook\" of pipe \"main\" was stopped by ann", func() {
			exec(`INSERT INTO postrider_stop (pipe, destination, at, actor, reason) VALUES ('main', 'hook', 1, 'ann', 'gone')`)
		}, func() { exec(`DELETE FROM postrider_stop`) }},
		{"journal", "journal mode", func() { exec(`PRAGMA journal_mode = DELETE`) }, nil},
		{
			"file", "may write", func() { _ = os.Chmod(path, 0o666) },
			func() { _ = os.Chmod(path, 0o600) },
		},
	} {
		c.provoke()
		f := ill(c.check, c.word)
		if f == nil {
			t.Errorf("%s: %q is not found", c.check, c.word)
			continue
		}
		if c.mend != nil {
			c.mend()
		} else {
			for _, sql := range f.SQL {
				exec(sql)
			}
		}
		if f := ill(c.check, c.word); f != nil {
			t.Errorf("after its fix: %+v", f)
		}
	}
	exec(`INSERT INTO postrider_outbox (topic, key) VALUES ('orders', 'k')`)
	if topics, err := s.Office().Samples.Topics(t.Context()); err != nil || len(topics) != 1 || topics[0] != "orders" {
		t.Errorf("topics %v, %v", topics, err)
	}
	all, err := s.Office().Doctor.Examine(t.Context(), ops.ExamineRequest{})
	if err != nil || len(all) != 6 {
		t.Errorf("%d findings, %v", len(all), err)
	}
	for _, f := range all {
		if f.Severity != ops.OK {
			t.Errorf("in order: %+v", f)
		}
	}
}
