package pgstore_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore"
)

// relayPool is a pool as a relay makes it of a connection string.
func relayPool(t *testing.T, conn string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgstore.ParseConfig(conn)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// silence is a server that takes connections and answers none, as one that is
// suspended does.
func silence(t *testing.T) (port int) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

// TestSilentHost: a host that does not answer holds up no connection, wherever it
// is in the string.
//
// Promises: S
func TestSilentHost(t *testing.T) {
	pg := testserver.SharedPostgres(t, "15")
	silent := silence(t)
	for _, hosts := range []string{
		fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d", silent, pg.Port),
		fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d", pg.Port, silent),
	} {
		pool := relayPool(t, "postgres://postgres@"+hosts+"/postgres?sslmode=prefer&connect_timeout=300")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range 3 {
			conn, err := pool.Acquire(ctx)
			if err != nil {
				t.Fatalf("%s: %v", hosts, err)
			}
			defer conn.Release()
		}
	}
}

// TestStandbyAmongHosts: of several hosts the relay uses the primary, also when the
// string does not ask for that.
func TestStandbyAmongHosts(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		p := newPair(t, version)
		p.caughtUp()
		st := pgstore.New(relayPool(t, fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable",
			p.standby.Port, p.primary.Port)), &pgstore.Options{Schema: "box"})
		if _, err := st.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestFrozenPrimary: the connections to a primary that is suspended do not each cost
// a heartbeat before the one to its successor is made.
//
// Promises: S
func TestFrozenPrimary(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		p := newPair(t, version)
		pool := relayPool(t, fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&connect_timeout=300",
			p.primary.Port, p.standby.Port))
		st := pgstore.New(pool, &pgstore.Options{Schema: "box"})
		lease := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := st.Lease(ctx, store.LeaseRequest{BootID: "a", TTL: time.Minute})
			return err
		}
		if _, err := st.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		var held []*pgxpool.Conn
		for range 8 {
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, conn)
		}
		for _, conn := range held {
			conn.Release()
		}
		p.caughtUp()
		if err := p.primary.Freeze(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.primary.Thaw() })
		if _, err := p.standby.Query(t.Context(), "postgres", `SELECT pg_promote()`); err != nil {
			t.Fatal(err)
		}
		const most = 7 // two that are not answered, and a slow machine: each of 8 connections would cost one
		var err error
		for range most {
			if err = lease(); err == nil {
				return
			}
		}
		t.Errorf("no lease after %d heartbeats: %v", most, err)
	})
}
