package sqlitestore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// TestTurnEndsWithContext: who waits for the write lock waits no longer than
// its context, and leaves its connection as it was.
func TestTurnEndsWithContext(t *testing.T) {
	pool, s := newOutbox(t, 1)
	pool.SetMaxOpenConns(2) // the writer that holds the lock, and one more
	holder, err := pool.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, wait := range map[string]func(context.Context) error{
		"BeginTx": func(ctx context.Context) error { _, err := pool.BeginTx(ctx, nil); return err },
		"Lease": func(ctx context.Context) error {
			_, err := s.Lease(ctx, store.LeaseRequest{BootID: "a", TTL: time.Hour})
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		start := time.Now()
		err := wait(ctx)
		cancel()
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took >= db.BusyTimeout {
			t.Errorf("%s returned %v after %s", name, err, took)
		}
		var timeout int64
		if err := pool.QueryRow("PRAGMA busy_timeout").Scan(&timeout); err != nil || timeout != db.BusyTimeout.Milliseconds() {
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
	pool, s := newOutbox(t, 1)
	pool.SetMaxOpenConns(1)
	if _, err := pool.Exec("PRAGMA busy_timeout = 123"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	var timeout int
	if err := pool.QueryRow("PRAGMA busy_timeout").Scan(&timeout); err != nil || timeout != 123 {
		t.Errorf("the busy timeout is %d ms, error %v", timeout, err)
	}
}

// A lease is committed when it reads the views of parked records: whoever writes meanwhile does
// not wait for them.
func TestViewsHoldUpNoWriter(t *testing.T) {
	pool, s := newOutbox(t, 1)
	writer, err := pool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := writer.ExecContext(t.Context(), "PRAGMA busy_timeout = 0"); err != nil {
		t.Fatal(err)
	}
	looks, free := 0, false // at the last look at the clock, which is a view's
	s.box.Now = func() time.Time {
		looks++
		_, err := writer.ExecContext(t.Context(), "BEGIN IMMEDIATE")
		if free = err == nil; free {
			_, err = writer.ExecContext(t.Context(), "ROLLBACK")
		}
		if free && err != nil {
			t.Error(err)
		}
		return time.Now()
	}
	if g, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Hour}); err != nil || len(g.Lanes) != 1 || g.Lanes[0].Known {
		t.Fatalf("grant %+v, error %v", g, err)
	}
	if looks == 0 || !free {
		t.Errorf("%d looks at the clock; nobody could write at the last one", looks)
	}
	g, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Hour, ActsOnly: true})
	if err != nil || len(g.Lanes) != 1 || !g.Lanes[0].Known {
		t.Errorf("for acts alone the grant is %+v, error %v", g, err)
	}
}

// A heartbeat that crosses the caller's own settlements keeps all of its lanes, however short
// the time for their views is: a lane that is left out is lost to its owner.
//
// Promises: D
func TestAHeartbeatBesideSettlementsKeepsTheLanes(t *testing.T) {
	_, s := newOutbox(t, 8)
	lease := func(req store.LeaseRequest) store.Grant {
		g, err := s.Lease(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	held := lease(store.LeaseRequest{BootID: "a", TTL: time.Hour}).Lanes
	known := map[store.Lane]int64{}
	for _, l := range held {
		known[l.Lane] = l.Epoch
		lost, err := s.Settle(t.Context(), []store.Settlement{{BootID: "a", Lane: l.Lane, Epoch: l.Epoch, Position: l.Position}})
		if err != nil || len(lost) > 0 {
			t.Fatal(lost, err)
		}
	}
	if now := lease(store.LeaseRequest{BootID: "a", TTL: time.Nanosecond, Known: known}).Lanes; len(now) != len(held) {
		t.Errorf("%d of %d lanes were granted", len(now), len(held))
	}
	lease(store.LeaseRequest{BootID: "a", Leave: true, TTL: time.Hour})
	for _, l := range lease(store.LeaseRequest{BootID: "a/b", TTL: time.Hour, Known: known}).Lanes {
		if l.Known {
			t.Errorf("lane %d was taken anew and needs no view", l.Lane)
		}
	}
}
