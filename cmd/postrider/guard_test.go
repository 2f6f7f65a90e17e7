package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/internal/testserver"
)

// TestGuardOfAConsumer: marks are listed, shown, set and reset, in a database that
// this program has made ready, and the journal has who and why.
func TestGuardOfAConsumer(t *testing.T) {
	stores := map[string]string{
		"sqlite":   "sqlite:" + filepath.Join(t.TempDir(), "billing.db"),
		"postgres": testserver.SharedPostgres(t, "18").Database(t),
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			run := func(want exit.Code, args ...string) result {
				t.Helper()
				r := cli(t, nil, "", append(args, "--store", store)...)
				if r.code != want {
					t.Fatalf("%v: exit %d, want %d: %s%s", args, r.code, want, r.out, r.err)
				}
				return r
			}
			if name == "sqlite" {
				buried(t, store, "billing") // a look makes no file
			} else if r := run(1, "guard", "list", "--consumer", "billing"); !strings.Contains(r.err, "migrate inbox") {
				t.Errorf("without tables: %s", r.err)
			}
			run(0, "migrate", "inbox")
			run(0, "migrate", "inbox")
			guard := func(want exit.Code, verb string, args ...string) result {
				t.Helper()
				return run(want, append([]string{"guard", verb, "--consumer", "billing"}, args...)...)
			}
			key := func(args ...string) []string { return append([]string{"--topic", "orders", "--key", "o-1"}, args...) }
			if r := guard(0, "set", key("--version", "7", "--reason", "began in the middle", "--actor", "ann")...); r.out != "version 7, was 0\n" {
				t.Errorf("set: %q", r.out)
			}
			guard(0, "set", "--topic", "orders", "--key", "o-2", "--version", "1", "--reason", "x")
			guard(0, "set", "--topic", "stock", "--key", "s", "--version", "2", "--reason", "x")
			var marks []answer.Mark
			if err := json.Unmarshal([]byte(guard(0, "list", "--topic", "orders", "--after", "o-1", "--output", "json").out), &marks); err != nil || len(marks) != 1 || marks[0].Key != "o-2" {
				t.Errorf("list: %+v, %v", marks, err)
			}
			if r := guard(0, "list", "--limit", "2"); !strings.Contains(r.out, "--topic orders --after o-2") {
				t.Errorf("a page: %s", r.out)
			}
			if r := guard(0, "list"); strings.Count(r.out, "\n") != 4 || !strings.Contains(r.out, "stock") {
				t.Errorf("all: %s", r.out)
			}
			guard(0, "reset", key("--reason", "sent again with new ids")...)
			if r := guard(0, "show", key()...); strings.TrimSpace(r.out) != "version  0" {
				t.Errorf("show: %q", r.out)
			}
			var acts []answer.Act
			if err := json.Unmarshal([]byte(run(0, "journal", "--consumer", "billing", "--output", "json").out), &acts); err != nil || len(acts) != 4 {
				t.Fatalf("journal: %+v, %v", acts, err)
			}
			first, last := acts[3], acts[0]
			if first.Actor != "ann" || first.Reason != "began in the middle" || first.Now != 7 || last.Act != "reset mark" || last.Was != 7 || last.Now != 0 || time.Since(last.At).Abs() > time.Hour {
				t.Errorf("journal: %+v", acts)
			}
			guard(2, "set", key("--version", "0", "--reason", "x")...)
			guard(2, "set", key("--version", "3")...)
			guard(2, "reset", "--topic", "orders", "--reason", "x")
			run(2, "guard", "list")
		})
	}
	if r := cli(t, nil, "", "migrate", "inbox", "--print-sql", "--store", "postgres:"); r.code != 0 || !strings.Contains(r.out, "postrider\".claim(consumer text") {
		t.Errorf("--print-sql: exit %d, %s%s", r.code, r.out, r.err)
	}
}

// TestPruneOfAConsumer: what is older than asked for goes, a duplicate that comes
// back afterwards would be new, so an age below the horizon is refused; marks stay.
//
// Promises: E
func TestPruneOfAConsumer(t *testing.T) {
	store := "sqlite:" + filepath.Join(t.TempDir(), "billing.db")
	db := buried(t, store, "billing", "dead")
	in := inboxwork.New(dialect.SQLite, "billing", nil)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		m := postrider.Message{ID: id, Topic: "orders", Key: "k", Version: 1}
		if _, err := in.Claim(t.Context(), tx, m); err != nil {
			t.Fatal(err)
		}
	}
	_, err = in.SetMark(t.Context(), inbox.SQL(tx), "orders", "k", 1)
	if err == nil {
		_, err = tx.Exec("UPDATE postrider_inbox SET processed_at = processed_at - 8 * 86400000000 WHERE message_id <> 'b'")
	}
	if err != nil || tx.Commit() != nil {
		t.Fatal(err)
	}
	prune := func(want exit.Code, args ...string) result {
		t.Helper()
		r := cli(t, nil, "", append([]string{"prune", "--consumer", "billing", "--store", store}, args...)...)
		if r.code != want {
			t.Fatalf("%v: exit %d, want %d: %s%s", args, r.code, want, r.out, r.err)
		}
		return r
	}
	prune(2)
	prune(2, "--older-than", "168h", "--max-bytes", "1")
	if r := prune(2, "--older-than", "167h"); !strings.Contains(r.err, "second effect") {
		t.Errorf("below the horizon: %s", r.err)
	}
	prune(2, "--older-than", "168h", "--horizon", "720h")
	prune(2, "--older-than", "23h", "--horizon", "1h") // there is a least one
	if r := prune(0, "--older-than", "168h", "--output", "json", "--actor", "bob", "--reason", "too large"); !strings.Contains(r.out, `"removed":1`) {
		t.Errorf("prune: %s", r.out)
	}
	if r := cli(t, nil, "", "journal", "--consumer", "billing", "--store", store); !strings.Contains(r.out, "bob") || !strings.Contains(r.out, "too large: 1 claims older than 168h0m0s") {
		t.Errorf("the journal: %s%s", r.out, r.err)
	}
	var left int
	if err := db.QueryRow("SELECT count(*) FROM postrider_inbox").Scan(&left); err != nil || left != 2 {
		t.Errorf("%d claims are left, %v; want that of the dead letter and the young one", left, err)
	}
	if r := cli(t, nil, "", "guard", "show", "--consumer", "billing", "--topic", "orders", "--key", "k", "--store", store); !strings.Contains(r.out, "version  1") {
		t.Errorf("the mark: %s", r.out)
	}
}
