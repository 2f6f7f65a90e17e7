package e2e

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/outbox"
)

// inboxDB is an empty database with an inbox and a table of effects.
func inboxDB(t *testing.T, db *sql.DB, d outbox.Dialect) *inbox.Inbox {
	t.Helper()
	in := inbox.New(d, "billing", nil)
	migrate(t, db, in)
	place := "" // SQLite has its rowid
	if d == outbox.Postgres {
		place = ", place bigserial" // where a row stands says nothing: rows take the room of those rolled back
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
func everyInbox(t *testing.T, fn func(t *testing.T, db *sql.DB, in *inbox.Inbox)) {
	t.Helper()
	everyVersion(t, func(t *testing.T, url string) {
		for _, driver := range []string{"pgx", "postgres"} {
			db := openSQL(t, driver, url)
			if _, err := db.Exec("DROP TABLE IF EXISTS effect, postrider.inbox, postrider.inbox_attempt, postrider.inbox_mark, postrider.inbox_stash"); err != nil {
				t.Fatal(err)
			}
			t.Run(driver, func(t *testing.T) { fn(t, db, inboxDB(t, db, outbox.Postgres)) })
		}
	})
	t.Run("sqlite", func(t *testing.T) {
		db, _ := sqlite(t)
		fn(t, db, inboxDB(t, db, outbox.SQLite))
	})
}

var placed = postrider.Message{ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: "orders", Type: "order.placed"}

// TestSerializationFailureIsRetryable: with REPEATABLE READ a duplicate that
// commits meanwhile is a serialization failure, not "seen".
func TestSerializationFailureIsRetryable(t *testing.T) {
	everyVersion(t, func(t *testing.T, url string) {
		for _, driver := range []string{"pgx", "postgres"} {
			db := openSQL(t, driver, url)
			in := inbox.New(outbox.Postgres, "billing-"+driver, nil)
			migrate(t, db, in)
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
	in := inbox.New(outbox.Postgres, "billing", nil)
	db := openSQL(t, "pgx", url)
	migrate(t, db, in)
	ran := 0
	for range 3 {
		err := inbox.OncePgx(context.Background(), in, pool, placed, func(tx pgx.Tx) error {
			ran++
			return outbox.New(outbox.Postgres, nil).Enqueue(t.Context(), outbox.Pgx(tx), postrider.Message{Topic: "invoices"})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, db, "SELECT count(*) FROM postrider.outbox"); n != 1 || ran != 1 {
		t.Errorf("%d messages of %d runs, want one of one", n, ran)
	}
}
