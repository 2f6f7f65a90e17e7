package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/answer"
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
		"mariadb":  testserver.SharedMySQL(t, testserver.MariaDB10).Database(t),
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
			var left []answer.Letter
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

// TestWhatAConsumerTriesAgain: a message that failed is listed with its reason and its next
// attempt, and so is a stashed one, by the command, by SQL and by message show.
//
// Promises: Q
func TestWhatAConsumerTriesAgain(t *testing.T) {
	for name, store := range map[string]string{
		"sqlite":   "sqlite:" + filepath.Join(t.TempDir(), "billing.db"),
		"postgres": testserver.StartPostgres(t, "18").URL,
	} {
		t.Run(name, func(t *testing.T) {
			db := buried(t, store, "billing", "c")
			in := inboxwork.New(dialectOf(store), "billing", nil)
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			fails := postrider.Message{ID: "a", Topic: "orders", Key: "ka", Type: "order.placed", Payload: []byte("secret-a")}
			early := postrider.Message{ID: "d", Topic: "orders", Key: "kd", Type: "order.placed", Payload: []byte("secret-d"), Version: 3}
			_, err = in.FailAttempt(t.Context(), inbox.SQL(tx), fails, "orders/0@7", false, time.Hour, "SCHEMA_NEWER: deploy")
			ruling, _, stash := in.Guard(t.Context(), inbox.SQL(tx), early, inbox.Contiguous, "orders/0@9")
			if err := errors.Join(err, stash, tx.Commit()); err != nil || ruling != inboxwork.Early {
				t.Fatal(ruling, err)
			}
			r := cli(t, nil, "", "dead", "list", "--all", "--consumer", "billing", "--store", store)
			lines := strings.Split(strings.TrimSpace(r.out), "\n")
			if r.code != 0 || len(lines) != 4 || strings.Contains(r.out, "secret-") {
				t.Fatalf("exit %d\n%s%s", r.code, r.out, r.err)
			}
			for i, want := range []string{"a retry its next attempt SCHEMA_NEWER SCHEMA_NEWER: deploy", "c dead a person: dead retry or dead discard no stock", "d waiting versions 1 to 2 of its key "} {
				words := strings.Fields(want)
				if got := strings.Join(strings.Fields(lines[i+1]), " "); !strings.HasPrefix(got, words[0]+" "+words[1]+" orders k") || !strings.Contains(got, strings.Join(words[2:], " ")) {
					t.Errorf("line %q, want %q", got, want)
				}
			}
			var all []answer.Unfinished
			r = cli(t, nil, "", "dead", "list", "--all", "--consumer", "billing", "--store", store, "--limit", "1", "-o", "json")
			if err := json.Unmarshal([]byte(r.out), &all); err != nil || len(all) != 1 || all[0].Code != "SCHEMA_NEWER" || all[0].Attempts != 1 || time.Until(all[0].NextAttempt) < 30*time.Minute {
				t.Errorf("%+v, %v", all, err)
			}
			r = cli(t, nil, "", "status", "--consumer", "billing", "--store", store)
			if !strings.Contains(r.out, "postrider dead list --all --consumer billing") {
				t.Errorf("status: %s", r.out)
			}
		})
	}
}

func stashed(t *testing.T, db *sql.DB, store string) (n int) {
	t.Helper()
	table := "postrider.inbox_stash"
	if d := dialectOf(store); d != dialect.Postgres {
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
	if strings.HasPrefix(store, "mariadb") {
		return dialect.MySQL
	}
	return dialect.Postgres
}
