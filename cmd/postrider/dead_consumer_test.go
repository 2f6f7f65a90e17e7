package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/internal/testserver"
)

// buried is a consumer's database with dead letters of the ids given.
func buried(t *testing.T, store, consumer string, ids ...string) *sql.DB {
	t.Helper()
	db, d, err := open.SQL(store, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	in := inboxwork.New(d, consumer, nil)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = in.Migrate(t.Context(), tx)
	for i, id := range ids {
		m := postrider.Message{ID: id, Topic: "orders", Key: "k" + id, Type: "order.placed", Payload: []byte("secret-" + id), Version: int64(i + 1)}
		_, dead := in.Bury(t.Context(), inbox.SQL(tx), m, "orders/0@7", 5, "no stock")
		err = errors.Join(err, dead)
	}
	if err := errors.Join(err, tx.Commit()); err != nil {
		t.Fatal(err)
	}
	return db
}

// TestDeadLettersOfAConsumer: they are listed, shown, revived and discarded
// without an outbox in the database, and what is not there is said.
func TestDeadLettersOfAConsumer(t *testing.T) {
	stores := map[string]string{
		"sqlite":   "sqlite:" + filepath.Join(t.TempDir(), "billing.db"),
		"postgres": testserver.StartPostgres(t, "18").URL,
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			db := buried(t, store, "billing", "a", "b", "c", "d")
			dead := func(want exit.Code, args ...string) result {
				t.Helper()
				args = append([]string{"dead", "--store", store, "--consumer", "billing"}, args...)
				r := cli(t, nil, "", args...)
				if r.code != want {
					t.Fatalf("%v: exit %d, want %d: %s%s", args, r.code, want, r.out, r.err)
				}
				if strings.Contains(r.out+r.err, "secret-") && !strings.Contains(strings.Join(args, " "), "--payload") {
					t.Errorf("%v shows a payload: %s%s", args, r.out, r.err)
				}
				return r
			}
			if r := dead(0, "list", "--limit", "2"); !strings.Contains(r.out, "no stock") || !strings.Contains(r.out, "--after b") {
				t.Errorf("list: %s", r.out)
			}
			if r := dead(0, "list", "--after", "b"); strings.Contains(r.out, "kb") || !strings.Contains(r.out, "kd") {
				t.Errorf("next page: %s", r.out)
			}
			if r := dead(0, "show", "a", "--payload"); !strings.Contains(r.out, "secret-a") || !strings.Contains(r.out, "orders/0@7") {
				t.Errorf("show: %s", r.out)
			}
			dead(1, "show", "z")
			dead(2, "retry")
			dead(2, "discard", "a")
			dead(2, "retry", "--all", "--lane", "3")
			if r := dead(0, "retry", "--all"); !strings.Contains(r.out, "--yes") {
				t.Errorf("a filter without --yes: %s", r.out)
			}
			dead(0, "retry", "a")
			dead(1, "retry", "a") // it is on its way
			dead(0, "discard", "b", "--reason", "test data")
			dead(0, "retry", "--key", "kc", "--yes")
			var left []letterAnswer
			if err := json.Unmarshal([]byte(dead(0, "list", "--output", "json").out), &left); err != nil || len(left) != 1 || left[0].ID != "d" {
				t.Errorf("left: %+v, %v", left, err)
			}
			acts, err := inboxwork.New(dialectOf(store), "billing", nil).Acts(t.Context(), db, 0, 10)
			if err != nil || len(acts) != 3 { // the newest first
				t.Fatalf("journal: %+v, %v", acts, err)
			}
			if a := acts[1]; a.Actor == "" || a.Act != "discard" || a.MessageID != "b" || a.Topic != "orders" || a.Key != "kb" || a.Reason != "test data" || a.At.IsZero() {
				t.Errorf("journal: %+v", a)
			}
			if acts[0].Act != "retry" || acts[0].MessageID != "c" || acts[2].MessageID != "a" {
				t.Errorf("journal: %+v", acts)
			}
			if n := stashed(t, db, store); n != 2 {
				t.Errorf("%d messages wait for the consumer, want 2", n)
			}
		})
	}
	if r := cli(t, nil, "", "dead", "list", "--store", "memory:", "--consumer", "billing"); r.code != 2 {
		t.Errorf("memory: exit %d, %s", r.code, r.err)
	}
}

func stashed(t *testing.T, db *sql.DB, store string) (n int) {
	t.Helper()
	table := "postrider.inbox_stash"
	if d := dialectOf(store); d == dialect.SQLite {
		table = "postrider_inbox_stash"
	}
	if err := db.QueryRowContext(context.WithoutCancel(t.Context()), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func dialectOf(store string) dialect.Dialect {
	if strings.HasPrefix(store, "sqlite") {
		return dialect.SQLite
	}
	return dialect.Postgres
}
