package promises

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/outbox"
)

// inboxDB makes an inbox and a table of effects in an empty database.
func inboxDB(t *testing.T, db *sql.DB, d dialect.Dialect) *inboxwork.Inbox {
	t.Helper()
	in := inboxwork.New(d, "billing", nil)
	migrate(t, db, in.Inbox)
	place := "" // SQLite has its rowid
	if d == dialect.Postgres {
		place = ", place bigserial" // the physical order is useless: rows reuse the space of rolled back ones
	}
	if _, err := db.Exec("CREATE TABLE effect (id text, n integer" + place + ")"); err != nil {
		t.Fatal(err)
	}
	return in
}

func migrate(t *testing.T, db *sql.DB, in *inbox.Inbox) {
	t.Helper()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(in.Migrate(t.Context(), tx), tx.Commit()); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// everyInbox runs fn on PostgreSQL through two drivers and on SQLite.
func everyInbox(t *testing.T, fn func(t *testing.T, db *sql.DB, in *inboxwork.Inbox)) {
	t.Helper()
	everyVersion(t, func(t *testing.T, url string) {
		for _, driver := range []string{"pgx", "postgres"} {
			db := openSQL(t, driver, url)
			if _, err := db.Exec("DROP TABLE IF EXISTS effect, postrider.inbox, postrider.inbox_attempt, postrider.inbox_mark, postrider.inbox_stash, postrider.inbox_batch, postrider.inbox_journal, postrider.inbox_schema"); err != nil {
				t.Fatal(err)
			}
			t.Run(driver, func(t *testing.T) { fn(t, db, inboxDB(t, db, dialect.Postgres)) })
		}
	})
	t.Run("sqlite", func(t *testing.T) {
		db, _ := sqlite(t)
		fn(t, db, inboxDB(t, db, dialect.SQLite))
	})
}

var placed = postrider.Message{ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: "orders", Type: "order.placed"}

// TestSerializationFailureIsRetryable: under REPEATABLE READ a concurrently committed
// duplicate is a serialization failure, not a duplicate.
//
// Promises: E
func TestSerializationFailureIsRetryable(t *testing.T) {
	everyVersion(t, func(t *testing.T, url string) {
		for _, driver := range []string{"pgx", "postgres"} {
			db := openSQL(t, driver, url)
			in := inboxwork.New(dialect.Postgres, "billing-"+driver, nil)
			migrate(t, db, in.Inbox)
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			if err != nil {
				t.Fatal(err)
			}
			var one int
			if err := tx.QueryRow("SELECT 1").Scan(&one); err != nil { // takes the snapshot
				t.Fatal(err)
			}
			if err := in.Once(t.Context(), db, placed, func(*sql.Tx) error { return nil }); err != nil {
				t.Fatal(err)
			}
			fresh, err := in.Claim(t.Context(), tx, placed)
			var again *inbox.RetryableError
			if fresh || !errors.As(err, &again) || again.Code != "40001" {
				t.Errorf("%s: fresh %v, error %v; want a *RetryableError of 40001", driver, fresh, err)
			}
			_ = tx.Rollback()
		}
	})
}

func TestOncePgx(t *testing.T) {
	url := postgres18(t)
	pool := pgxPool(t, url)
	in := inboxwork.New(dialect.Postgres, "billing", nil)
	db := openSQL(t, "pgx", url)
	migrate(t, db, in.Inbox)
	ran := 0
	for range 3 {
		err := inbox.OncePgx(context.Background(), in.Inbox, pool, placed, func(tx pgx.Tx) error {
			ran++
			return outbox.New(dialect.Postgres, nil).Enqueue(t.Context(), outbox.Pgx(tx), postrider.Message{Topic: "invoices"})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, db, "SELECT count(*) FROM postrider.outbox"); n != 1 || ran != 1 {
		t.Errorf("%d messages of %d runs, want 1 of 1", n, ran)
	}
}

// TestClaimInSQL: postrider.claim and claim_version return true for the first delivery,
// share their rows with package inbox, wait for an open transaction, and refuse messages
// that cannot be distinguished from a duplicate.
//
// Promises: E
func TestClaimInSQL(t *testing.T) {
	url := postgres18(t)
	db := openSQL(t, "pgx", url)
	in := inboxDB(t, db, dialect.Postgres)
	if _, err := db.Exec("CREATE SCHEMA decoy; CREATE TABLE decoy.inbox (LIKE postrider.inbox)"); err != nil {
		t.Fatal(err)
	}
	type asker interface {
		QueryRow(query string, args ...any) *sql.Row
	}
	first := func(q asker, call string) (is bool) {
		t.Helper()
		if err := q.QueryRow("SELECT postrider." + call).Scan(&is); err != nil {
			t.Fatalf("%s: %v", call, err)
		}
		return is
	}
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("SET LOCAL search_path = decoy"); err != nil {
		t.Fatal(err)
	}
	if !first(tx, "claim('billing', 'm1', 'orders', 'order.placed')") {
		t.Error("the first claim returned false")
	}
	second := make(chan bool, 1)
	go func() {
		var is bool
		err := db.QueryRow("SELECT postrider.claim(consumer => 'billing', id => 'm1')").Scan(&is)
		second <- err == nil && !is
	}()
	until(t, 30*time.Second, "the second waits", func() bool {
		return count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%claim(consumer%' AND pid <> pg_backend_pid() AND datname = current_database()") == 1
	})
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if !<-second {
		t.Error("the claim of a concurrent duplicate returned true, or failed")
	}
	m := placed
	m.ID = "m1"
	if err := in.Once(t.Context(), db, m, func(*sql.Tx) error { return errors.New("it was claimed in SQL") }); err != nil {
		t.Error(err)
	}
	if !first(db, "claim('shipping', 'm1')") {
		t.Error("another consumer's claim returned false")
	}
	for _, c := range []struct {
		version string
		want    bool
	}{{"2", true}, {"2", false}, {"1", false}, {"5", true}} {
		if is := first(db, "claim_version('billing', 'orders', 'k', "+c.version+")"); is != c.want {
			t.Errorf("version %s: %v, want %v", c.version, is, c.want)
		}
	}
	tx, err = db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if mark, err := in.Mark(t.Context(), inbox.SQL(tx), "orders", "k"); err != nil || mark != 5 {
		t.Errorf("mark %d, %v; want 5", mark, err)
	}
	for _, call := range []string{"claim('', 'x')", "claim(NULL, 'x')", "claim('billing', '')", "claim('billing', NULL)", "claim_version('billing', 't', '', 1)", "claim_version('billing', 't', 'k', 0)"} {
		var pg *pgconn.PgError
		if _, err := db.Exec("SELECT postrider." + call); !errors.As(err, &pg) || pg.Code != "22023" {
			t.Errorf("%s: %v", call, err)
		}
	}
	if n := count(t, db, "SELECT count(*) FROM decoy.inbox"); n != 0 {
		t.Error("the function wrote to a table in the caller's search path")
	}
}
