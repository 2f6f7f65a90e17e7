package sqlitestore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
)

// TestTurnEndsWithContext: who waits for the write lock waits no longer than
// its context, and leaves its connection as it was.
func TestTurnEndsWithContext(t *testing.T) {
	db, s := newOutbox(t, 1)
	db.SetMaxOpenConns(2) // the writer that holds the lock, and one more
	holder, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, wait := range map[string]func(context.Context) error{
		"BeginTx": func(ctx context.Context) error { _, err := db.BeginTx(ctx, nil); return err },
		"Lease": func(ctx context.Context) error {
			_, err := s.Lease(ctx, store.LeaseRequest{BootID: "a", TTL: time.Hour})
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		start := time.Now()
		err := wait(ctx)
		cancel()
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took >= busyTimeout {
			t.Errorf("%s returned %v after %s", name, err, took)
		}
		var timeout int64
		if err := db.QueryRow("PRAGMA busy_timeout").Scan(&timeout); err != nil || timeout != busyTimeout.Milliseconds() {
			t.Errorf("%s left a busy timeout of %d ms, error %v", name, timeout, err)
		}
	}
	if err := holder.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Hour}); err != nil {
		t.Errorf("Lease returned %v when the lock was free", err)
	}
}

// TestTurnKeepsTimeout: the store waits for its turn on the application's pool
// too, and leaves the pool's timeout alone.
func TestTurnKeepsTimeout(t *testing.T) {
	db, s := newOutbox(t, 1)
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("PRAGMA busy_timeout = 123"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	var timeout int
	if err := db.QueryRow("PRAGMA busy_timeout").Scan(&timeout); err != nil || timeout != 123 {
		t.Errorf("the busy timeout is %d ms, error %v", timeout, err)
	}
}
