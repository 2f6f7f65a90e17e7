package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver/mysqlha"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// onPairs runs a test on a primary with a replica, of every server that this run has.
func onPairs(t *testing.T, test func(t *testing.T, p *mysqlha.Pair, s *Store)) {
	t.Helper()
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			p := mysqlha.StartPair(t, version)
			s := New(pool(t, p.URL), nil)
			if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 1}); err != nil {
				t.Fatal(err)
			}
			test(t, p, s)
		})
	}
}

// A replica that is promoted continues from what it has: what a relay remembers of the old
// primary is refused, and everything that the new one has arrives, in order. The new primary
// draws numbers again that the old one took with it.
//
// Promises: L, O
func TestPromotedReplica(t *testing.T) {
	onPairs(t, func(t *testing.T, p *mysqlha.Pair, s *Store) {
		ctx := t.Context()
		put := func(n int) {
			t.Helper()
			for range n {
				if _, err := s.box.DB.ExecContext(ctx, insert); err != nil {
					t.Fatal(err)
				}
			}
		}
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		put(3)
		g := lease(t, s, "a")
		if got := carry(t, s, "a", &g); len(got) != 3 {
			t.Fatalf("read %v", got)
		}
		check(p.CaughtUp(ctx))
		check(p.CutOff(ctx))
		put(50) // lost with the primary
		read := []store.LaneRead{{Lane: 0, MaxRecords: 1000}}
		ahead, err := s.Read(ctx, read)
		check(err)
		check(p.Primary.Kill())
		check(p.Promote(ctx))
		put(60)
		_, err = s.Settle(ctx, []store.Settlement{{BootID: "a", Lane: 0, Epoch: g.Lanes[0].Epoch, Position: ahead[0].Position}})
		if !errors.Is(err, store.ErrIdentity) {
			t.Errorf("a settlement of what the old primary had: error %v", err)
		}
		if _, err := s.Read(ctx, read); !errors.Is(err, store.ErrIdentity) {
			t.Errorf("a read with the memory of the old primary: error %v", err)
		}
		g = lease(t, s, "a")
		if got := carry(t, s, "a", &g); len(got) != 60 || !slices.IsSorted(got) {
			t.Errorf("%d messages after the promotion: %v", len(got), got)
		}
		if st, err := s.Office().Admin.Status(ctx); err != nil || len(st.Alarms) > 0 || st.Pending > 0 {
			t.Errorf("pending %d, alarms %q, error %v", st.Pending, st.Alarms, err)
		}
	})
}

// The new primary lacks the last rise of the epoch, which the old one made, and its first lease raises
// the epoch as well: these are two histories. What a relay has read in the one does not count in the
// other, also where the epoch of the lane fits and the relay has not heard of its new lease.
//
// Promises: L
func TestARiseThatWasLostMakesNoSecondHistoryTheSame(t *testing.T) {
	onPairs(t, func(t *testing.T, p *mysqlha.Pair, s *Store) {
		ctx := t.Context()
		put := func(n int) {
			t.Helper()
			for range n {
				if _, err := s.box.DB.ExecContext(ctx, insert); err != nil {
					t.Fatal(err)
				}
			}
		}
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		put(3)
		g := lease(t, s, "a")
		if got := carry(t, s, "a", &g); len(got) != 3 {
			t.Fatalf("read %v", got)
		}
		check(p.CaughtUp(ctx))
		check(p.CutOff(ctx))
		_, err := s.box.DB.ExecContext(ctx, `UPDATE postrider_info SET started = 0`) // as after a restart
		check(err)
		old := lease(t, s, "a")
		put(50) // lost with the primary
		ahead, err := s.Read(ctx, []store.LaneRead{{Lane: 0, MaxRecords: 1000}})
		if err != nil || len(ahead[0].Messages) != 50 {
			t.Fatalf("%d messages, error %v", len(ahead[0].Messages), err)
		}
		check(p.Primary.Kill())
		check(p.Promote(ctx))
		put(60)
		g = lease(t, s, "a")
		if g.Identity == old.Identity {
			t.Errorf("both histories are %s", g.Identity)
		}
		_, err = s.Settle(ctx, []store.Settlement{{BootID: "a", Lane: 0, Epoch: g.Lanes[0].Epoch, Position: ahead[0].Position}})
		if !errors.Is(err, store.ErrIdentity) {
			t.Errorf("a settlement of the old position: error %v", err)
		}
		_, err = s.Read(ctx, []store.LaneRead{{Lane: 0, MaxRecords: 1000, After: ahead[0].Position}})
		if !errors.Is(err, store.ErrIdentity) {
			t.Errorf("a read behind the old position: error %v", err)
		}
		if got := carry(t, s, "a", &g); len(got) != 60 || !slices.IsSorted(got) {
			t.Errorf("%d messages after the promotion: %v", len(got), got)
		}
	})
}

// After a switch of roles the old primary lives on, read-only: its connections are not used any more, and
// nothing of what it shows is mixed into what the new one has.
//
// Promises: L, O
func TestSwitchedRoles(t *testing.T) {
	onPairs(t, func(t *testing.T, p *mysqlha.Pair, s *Store) {
		ctx := t.Context()
		if _, err := s.box.DB.ExecContext(ctx, insert); err != nil {
			t.Fatal(err)
		}
		g := lease(t, s, "a")
		carry(t, s, "a", &g)
		read := []store.LaneRead{{Lane: 0, MaxRecords: 1000}}
		atRest(t, s, 6)
		if _, err := p.Primary.Query(ctx, "", "set global read_only = 1"); err != nil {
			t.Fatal(err)
		}
		_, err := s.Lease(ctx, store.LeaseRequest{BootID: "a", TTL: time.Minute})
		var unusable *store.UnusableError
		if want := fmt.Sprintf("no host takes writes: 127.0.0.1:%d: the server is read-only", p.Primary.Port); !errors.As(err, &unusable) || !unusable.Passing || !strings.Contains(err.Error(), want) {
			t.Errorf("a lease while no host takes writes: error %v", err)
		}
		if err := errors.Join(p.CaughtUp(ctx), p.Promote(ctx)); err != nil {
			t.Fatal(err)
		}
		writer := pool(t, p.URL)
		for range 5 {
			if _, err := writer.ExecContext(ctx, insert); err != nil {
				t.Fatal(err)
			}
		}
		g = lease(t, s, "a") // although each connection of the pool leads to the old primary
		for i := range 3 {
			b, err := s.Read(ctx, read)
			if err != nil || len(b[0].Messages) != 5 {
				t.Fatalf("read %d: %v, error %v", i, b, err)
			}
		}
		if got := carry(t, s, "a", &g); len(got) != 5 {
			t.Errorf("read %v", got)
		}
	})
}

// atRest makes a pool keep n connections.
func atRest(t *testing.T, s *Store, n int) {
	t.Helper()
	var all []interface{ Close() error }
	for range n {
		conn, err := s.box.DB.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
	}
	for _, conn := range all {
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A primary that is suspended does not cost a heartbeat for each connection of the pool before its
// successor is found.
//
// Promises: S
func TestSuspendedPrimary(t *testing.T) {
	onPairs(t, func(t *testing.T, p *mysqlha.Pair, s *Store) {
		lease(t, s, "a")
		atRest(t, s, 8)
		if err := p.CaughtUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		old := p.Primary
		if err := old.Freeze(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = old.Thaw() })
		if err := p.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
		const most = 5 // one that is not answered, and a slow machine: each of 8 connections would cost one
		var err error
		for range most {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			_, err = s.Lease(ctx, store.LeaseRequest{BootID: "a", TTL: time.Minute})
			cancel()
			if err == nil {
				return
			}
		}
		t.Errorf("no lease after %d heartbeats: %v", most, err)
	})
}
