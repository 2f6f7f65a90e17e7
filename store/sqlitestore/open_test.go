package sqlitestore

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/postrider/postrider/store"
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

// In such a file a payload that was inserted as text would be sent in UTF-16, and a key would
// have another lane than the commands look for it in.
func TestAFileInUTF16IsRefused(t *testing.T) {
	pool := openFile(t, filepath.Join(t.TempDir(), "shop.db"))
	pool.SetMaxOpenConns(1)
	if _, err := pool.Exec(`PRAGMA encoding = 'UTF-16le'`); err != nil {
		t.Fatal(err)
	}
	var unusable *store.UnusableError
	steps, err := New(pool, nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 1})
	if !errors.As(err, &unusable) || unusable.Fix == "" {
		t.Errorf("steps %v, error %v", steps, err)
	}
}
