package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
)

// A relay that is no more than a member of postrider_relay works; its password
// changes while it runs, before or after the file does, and that is at most one
// outage each.
//
// Promises: C
func TestPasswordRotates(t *testing.T) {
	for _, version := range testserver.NewestPostgres() {
		t.Run("pg"+version, func(t *testing.T) { passwordRotates(t, testserver.StartPostgres(t, version)) })
	}
}

func passwordRotates(t *testing.T, pg *testserver.Postgres) {
	t.Helper()
	store := outboxOn(t, pg)
	sql := func(text string) [][]string {
		t.Helper()
		rows, err := pg.Query(t.Context(), database(t, store), text)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	mustCLI(t, "", "migrate", "--roles", "--store", store)
	sql(`CREATE ROLE rotating LOGIN PASSWORD 'hunter1' IN ROLE postrider_relay; CREATE ROLE looking LOGIN IN ROLE postrider_reader;
		CREATE ROLE writing LOGIN IN ROLE postrider_writer; CREATE ROLE acting LOGIN IN ROLE postrider_admin`)
	guard(t, pg, "rotating")
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("hunter1\n")
	relay := launchRelay(t, as(t, store, "rotating", ""), "memory:", "--store-password-file", file, "--instance", "rot")
	sent := func(n float64) {
		t.Helper()
		mustCLI(t, oneMessage, "enqueue", "--store", as(t, store, "writing", ""))
		until(t, "the relay delivers", relay, func() bool {
			var status struct{ Delivered float64 }
			got := mustCLI(t, "", "status", "-o", "json", "--store", as(t, store, "looking", ""))
			return json.Unmarshal([]byte(got), &status) == nil && status.Delivered == n
		})
	}
	sent(1)
	mustCLI(t, "", "dead", "list", "--store", as(t, store, "acting", ""))
	if rows := sql(`SELECT DISTINCT application_name FROM pg_stat_activity WHERE usename = 'rotating'`); len(rows) != 1 || rows[0][0] != "postrider-relay/rot" {
		t.Errorf("the relay is known as %q", rows)
	}
	cut := `; SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'rotating'`
	write("hunter2")
	sql(`ALTER ROLE rotating PASSWORD 'hunter2'` + cut)
	sent(2)
	const away = "database unreachable"
	before := relay.said.count(away)
	sql(`ALTER ROLE rotating PASSWORD 'hunter3'` + cut)
	until(t, "the relay says that it is kept out", relay, func() bool { return relay.said.count(away) > before })
	write("hunter3\n")
	sent(3)
	// A machine that is starved makes outages of its own.
	if n := relay.said.count(away) - relay.said.count("timeout: context deadline exceeded"); n > 2 || relay.said.count("hunter") > 0 {
		t.Errorf("%d lines about outages of 2, or a password:\n%s", n, relay.said)
	}
	relay.stop()
	mustCLI(t, "", "migrate", "status", "--store", as(t, store, "rotating", ""), "--store-password-command", "cat "+file)
}

// A source of passwords that gives none is a mistake that is said in one line,
// without what it printed.
func TestNoPassword(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"no such file":       {"--store-password-file", filepath.Join(t.TempDir(), "none")},
		"want one line":      {"--store-password-file", empty},
		"exit status 3":      {"--store-password-command", "echo hunter2; echo hunter2 >&2; exit 3"},
		"got 16 bytes":       {"--store-password-command", "echo hunter2; echo hunter2"},
		"exclude each other": {"--store-password-command", "true", "--store-password-file", empty},
	} {
		got := cli(t, nil, "", append([]string{"status", "--store", "postgres://u@127.0.0.1:1/db"}, args...)...)
		if got.code != 2 || !strings.Contains(got.err, want) || strings.Count(got.err, "\n") != 1 || strings.Contains(got.err, "hunter2") {
			t.Errorf("%v: exit code %d, %q, want %q", args, got.code, got.err, want)
		}
	}
}
