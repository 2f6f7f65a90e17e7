package sqlitestore

import (
	"path/filepath"
	"testing"

	"github.com/postrider/postrider/store/ops"
)

// TestOpen: Close ends the pool that Open made, and no other.
func TestOpen(t *testing.T) {
	if _, err := Open("", nil); err == nil {
		t.Error("a store without a file opens")
	}
	path := filepath.Join(t.TempDir(), "shop.db")
	own, err := Open(path, &Options{Pipe: "audit"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{}); err != nil || own.Info().Pipe != "audit" {
		t.Errorf("%+v, %v", own.Info(), err)
	}
	db, err := OpenDB(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := New(db, nil).Close(); err != nil || db.PingContext(t.Context()) != nil {
		t.Errorf("a store ends the pool of its caller: %v", err)
	}
	if err := own.Close(); err != nil || own.box.DB.PingContext(t.Context()) == nil {
		t.Errorf("a closed store works: %v", err)
	}
}
