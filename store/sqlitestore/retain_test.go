package sqlitestore

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// A file of the version before keeps its rows and its positions, and retention works
// in it after the migration.
//
// Promises: G
func TestUpgradeToRetention(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "shop.db"))
	s := New(db, nil)
	office := s.Office()
	if _, err := office.Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 1, Target: 1}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := db.Exec(plainInsert); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Exec(`UPDATE postrider_progress SET pos = 2, delivered = 2`); err != nil {
		t.Fatal(err)
	}
	steps, err := office.Migrator.Migrate(t.Context(), ops.MigrateRequest{})
	if err != nil || len(steps) == 0 || steps[0].Version != 2 {
		t.Fatalf("steps %+v, error %v", steps, err)
	}
	s.box.Now = func() time.Time { return time.Now().Add(time.Hour) }
	done, err := s.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "a", OlderThan: time.Minute})
	if err != nil || done.Rows != 2 || done.Held.Pipe != "main" || done.Held.Rows != 1 {
		t.Errorf("%+v, error %v, want the two settled rows gone and one held", done, err)
	}
	b, err := s.Read(t.Context(), []store.LaneRead{{MaxRecords: 10}})
	if err != nil || len(b[0].Messages) != 1 || b[0].Meta[0].Seq != 3 {
		t.Errorf("read %+v, error %v, want the row that is not settled", b, err)
	}
}

// The lease of a runner that wrote it before the clock was set back ends.
func TestRetentionAfterTheClockWasSetBack(t *testing.T) {
	_, s := newOutbox(t, 1)
	s.box.Now = func() time.Time { return time.Now().Add(24 * time.Hour) }
	prune := func(runner string) ops.Pruned {
		t.Helper()
		done, err := s.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: runner})
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	prune("before")
	if done := prune("beside"); done.Runner != "before" {
		t.Errorf("beside another runner: %+v", done)
	}
	s.box.Now = time.Now
	if done := prune("after"); done.Runner != "" {
		t.Errorf("a lease from before the clock was set back still counts: %+v", done)
	}
}

// While an archive is written, a backup may come into the file's place. A row that is
// not settled there, or is another message, stays.
//
// Promises: L
func TestArchiveRemovesOnlyWhatItWasGiven(t *testing.T) {
	db, s := newOutbox(t, 1)
	for range 4 {
		if _, err := db.Exec(plainInsert); err != nil {
			t.Fatal(err)
		}
	}
	exec := func(query string) {
		t.Helper()
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	exec(`UPDATE postrider_progress SET pos = 4, delivered = 4`)
	s.box.Now = func() time.Time { return time.Now().Add(time.Hour) }
	done, err := s.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "a", OlderThan: time.Minute, Archive: func(_ context.Context, rows []ops.ArchivedRow) error {
		if len(rows) != 4 {
			t.Errorf("%d rows were handed out, want 4", len(rows))
		}
		exec(`UPDATE postrider_progress SET pos = 3, delivered = 3`)
		exec(`UPDATE postrider_outbox SET id = '01890a5d-ac96-774b-bcce-000000000000' WHERE seq = 2`)
		return nil
	}})
	if err != nil || done.Rows != 2 {
		t.Errorf("%d rows removed, error %v, want 1 and 3", done.Rows, err)
	}
}
