package pgstore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore"
)

// A page that the server does not finish in time is asked for again with
// fewer records, down to one, also when nothing was read before.
//
// Promises: S
func TestPagesShrinkOnTheServersTimeout(t *testing.T) {
	d := fresh(t, "18", 1)
	g := mustLease(t, d.store("main"), store.LeaseRequest{BootID: "a", TTL: time.Minute})
	cfg := d.pool.Config()
	cfg.ConnConfig.RuntimeParams["statement_timeout"] = "50ms"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s := pgstore.New(pool, &pgstore.Options{Schema: d.schema})
	const bytes = 4 << 20
	if n := s.PageRows(256, bytes); n > 32 {
		t.Errorf("%d records are asked for before one was seen", n)
	}
	if _, err := d.begin().Exec(t.Context(), d.sql(`LOCK TABLE box.outbox IN ACCESS EXCLUSIVE MODE`)); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		_, err := s.Read(t.Context(), []store.LaneRead{{Lane: 0, Epoch: g.Lanes[0].Epoch, After: g.Lanes[0].Position, MaxRecords: 256, MaxBytes: bytes}})
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "57014" {
			t.Fatalf("a read that the server ends: %v", err)
		}
	}
	if n := s.PageRows(256, bytes); n != 1 {
		t.Errorf("%d records are asked for after 8 timeouts", n)
	}
}

// TestTimeouts names the errors that make pages smaller: what PostgreSQL and PgBouncer
// answer when a statement or a transaction takes too long, and no other error.
func TestTimeouts(t *testing.T) {
	for _, c := range []struct {
		code, message string
		want          bool
	}{
		{"57014", "canceling statement due to statement timeout", true},
		{"25P04", "terminating connection due to transaction timeout", true},
		{"08P01", "query_timeout", true},
		{"08P01", "query_wait_timeout", true},
		{"08P01", "no more connections allowed (max_client_conn)", false},
		{"57P01", "terminating connection due to administrator command", false},
		{"55P03", "canceling statement due to lock timeout", false},
	} {
		if got := pgstore.TimedOut(fmt.Errorf("read: %w", &pgconn.PgError{Code: c.code, Message: c.message})); got != c.want {
			t.Errorf("%s %s: %t, want %t", c.code, c.message, got, c.want)
		}
	}
	if pgstore.TimedOut(errors.New("query_timeout")) {
		t.Error("an error that is not the server's shrinks pages")
	}
}
