package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

// enqueued writes n messages of n keys.
func enqueued(t *testing.T, store string, n int) {
	t.Helper()
	lines := strings.Repeat(`{"topic":"t","key":"k","payload_text":"x"}`+"\n", n)
	mustCLI(t, lines, "enqueue", "--store", store)
}

// delivered runs a relay until nothing is pending.
func delivered(t *testing.T, store string, more ...string) {
	t.Helper()
	p := launchRelay(t, store, "memory:", more...)
	until(t, "nothing is pending", p, func() bool {
		var now answer.Status
		err := json.Unmarshal([]byte(mustCLI(t, "", "status", "--store", store, "-o", "json")), &now)
		return err == nil && now.Pending == 0
	})
	p.stop()
}

// ask runs one statement and returns what it says first.
func ask(t *testing.T, store, statement string) (answer string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }() // the test is over
	if err := conn.QueryRow(t.Context(), statement).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return answer
}

// scrape returns the relay's metrics, "" until it serves them.
func (p *process) scrape() string {
	p.t.Helper()
	found := regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(p.said.String())
	if found == nil {
		return ""
	}
	resp, err := http.Get("http://" + found[1] + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

// TestPruneAndAudit types the commands of docs/sizing.md and of the runbook's
// books, and expects the words of a difference.
func TestPruneAndAudit(t *testing.T) {
	st := outboxOn(t, testserver.SharedPostgres(t, "18"))
	enqueued(t, st, 30)
	delivered(t, st, "--retention", "off")

	dir := t.TempDir()
	if out := mustCLI(t, "", "prune", "--store", st, "--older-than", "0s", "--dry-run"); !strings.Contains(out, "30 rows") {
		t.Errorf("dry run: %s", out)
	}
	if out := mustCLI(t, "", "prune", "--store", st); !strings.Contains(out, "0 rows") {
		t.Errorf("nothing is a week old: %s", out)
	}
	var swept answer.Swept
	out := mustCLI(t, "", "prune", "--store", st, "--older-than", "0s", "--archive", dir, "-o", "json", "--actor", "bob", "--reason", "the disk is full")
	if err := json.Unmarshal([]byte(out), &swept); err != nil || swept.Rows != 30 || swept.DryRun {
		t.Errorf("swept %s, %v", out, err)
	}
	archives, err := filepath.Glob(filepath.Join(dir, "outbox-*.jsonl"))
	if err != nil || len(archives) != 1 { // one key, one lane
		t.Fatalf("archives %v, %v", archives, err)
	}
	if data, err := os.ReadFile(archives[0]); err != nil || strings.Count(string(data), "\n") != 31 {
		t.Errorf("the archive has %d lines, %v", strings.Count(string(data), "\n"), err)
	}
	enqueued(t, st, 5)
	if out := mustCLI(t, "", "prune", "--store", st, "--older-than", "0s", "--archive", "command:cat > "+filepath.Join(dir, "none")); !strings.Contains(out, "0 rows") {
		t.Errorf("rows that no pipe has settled went: %s", out)
	}
	if got := cli(t, nil, "", "prune", "--store", st, "--hold-max-rows", "2"); got.code != exit.Findings || !strings.Contains(got.err, `pipe "main" holds back 5 rows`) {
		t.Errorf("over the cap: %d %s", got.code, got.err)
	}

	var books answer.Books
	out = mustCLI(t, "", "audit", "--store", st, "-o", "json")
	if err := json.Unmarshal([]byte(out), &books); err != nil || books.Difference != 0 || len(books.Pipes) != 1 ||
		books.Pipes[0].Committed != 35 || books.Pipes[0].Sent != 30 || books.Pipes[0].Pending != 5 {
		t.Errorf("books %s, %v", out, err)
	}
	if seq := ask(t, st, `DELETE FROM postrider.outbox WHERE seq = (SELECT max(seq) FROM postrider.outbox) RETURNING seq::text`); seq != "35" {
		t.Fatalf("removed %s by hand", seq)
	}
	got := cli(t, nil, "", "audit", "--store", st)
	if got.code != exit.Findings || !strings.Contains(got.err, "the books differ by 1") || !strings.Contains(got.out, "numbers without a row: 35") {
		t.Errorf("a row was removed by hand: %d %s%s", got.code, got.out, got.err)
	}
	if got := cli(t, nil, "", "audit", "--store", st, "--reopen"); got.code != exit.Usage {
		t.Errorf("reopened without a reason: %d %s", got.code, got.err)
	}
	mustCLI(t, "", "audit", "--store", st, "--reopen", "--reason", "removed by a test", "--actor", "ann")
	if out := mustCLI(t, "", "journal", "--store", st); !strings.Contains(out, "audit reopen") || !strings.Contains(out, "removed by a test") {
		t.Errorf("the journal has no entry: %s", out)
	}
	if out := mustCLI(t, "", "journal", "--store", st, "--act", "prune"); strings.Count(out, "bob  prune") != 2 || !strings.Contains(out, "the disk is full") || !strings.Contains(out, "30") {
		t.Errorf("the journal has no entry for what was pruned: %s", out)
	}
	for _, args := range [][]string{{"prune"}, {"audit"}} {
		if got := cli(t, nil, "", append(args, "--store", "memory:")...); got.code != exit.Usage || !strings.Contains(got.err, "PostgreSQL has") {
			t.Errorf("%v of another store: %d %s", args, got.code, got.err)
		}
	}
}

// Where rows go at once none is left behind when a relay has drained.
//
// Promises: G
func TestRetentionAtTheEndOfADrain(t *testing.T) {
	st := outboxOn(t, testserver.SharedPostgres(t, "18"))
	enqueued(t, st, 500)
	delivered(t, st, "--retention", "0s")
	if n := ask(t, st, `SELECT count(*)::text FROM postrider.outbox`); n != "0" {
		t.Errorf("%s settled rows stayed", n)
	}
	if owner := ask(t, st, `SELECT owner FROM postrider.retention`); owner != "" {
		t.Errorf("the lease was not given back: %q", owner)
	}
}

// A person's prune removes rows beside a relay that holds the lease of retention.
//
// Promises: G
func TestPruneBesideARelay(t *testing.T) {
	st := outboxOn(t, testserver.SharedPostgres(t, "18"))
	enqueued(t, st, 30)
	p := launchRelay(t, st, "memory:")
	until(t, "the relay holds the lease of retention, and has sent all", p, func() bool {
		return ask(t, st, `SELECT ((SELECT owner <> '' FROM postrider.retention)
			AND NOT EXISTS (SELECT FROM postrider.messages WHERE state <> 'Sent'))::text`) == "true"
	})
	var swept answer.Swept
	out := mustCLI(t, "", "prune", "--store", st, "--older-than", "0s", "-o", "json")
	if err := json.Unmarshal([]byte(out), &swept); err != nil || swept.Rows != 30 || swept.OtherRunner != "" {
		t.Errorf("pruned %s, %v", out, err)
	}
	p.stop()
	if out := mustCLI(t, "", "audit", "--store", st, "--full"); strings.Contains(out, "differ") {
		t.Errorf("audit: %s", out)
	}
}

// A relay removes what is settled and looks at the books by itself.
func TestRelayKeepsHouse(t *testing.T) {
	st := outboxOn(t, testserver.SharedPostgres(t, "18"))
	enqueued(t, st, 40)
	p := launch(t, "relay", "--store", st, "--broker", "memory:", "--listen", "127.0.0.1:0", "--retention", "0s", "--audit-every", "100ms")
	want := []string{
		"postrider_retention_removed_total 40", "postrider_audit_difference 0", "postrider_retention_runner 1", "postrider_housekeeping_failing 0",
	}
	until(t, "rows are removed and books looked at", p, func() bool {
		text := p.scrape()
		return !slices.ContainsFunc(want, func(line string) bool { return !strings.Contains(text, line) })
	})
	p.stop()
	if owner := ask(t, st, `SELECT owner FROM postrider.retention`); owner != "" {
		t.Errorf("the lease of retention was left with %q", owner)
	}
}

// What the housekeeping serves to those who watch it: rows that a pipe holds
// back, above the cap and not.
func TestHousekeepingMetrics(t *testing.T) {
	st := outboxOn(t, testserver.SharedPostgres(t, "18"))
	mustCLI(t, "", "pipe", "add", "still", "--from", "beginning", "--store", st)
	enqueued(t, st, 40)
	serves := func(want []string, args ...string) {
		t.Helper()
		p := launch(t, append([]string{"relay", "--store", st, "--broker", "memory:", "--listen", "127.0.0.1:0", "--audit-every", "100ms"}, args...)...)
		until(t, "the metrics are there", p, func() bool {
			text := p.scrape()
			return !slices.ContainsFunc(want, func(line string) bool { return !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(text) })
		})
		p.stop()
	}
	serves([]string{
		`postrider_retention_held_over 1`, `postrider_retention_held_rows{by="still"} 40`, `postrider_retention_held_bytes{by="still"} [1-9][0-9]{3,}`,
		`postrider_retention_removed_total 0`,
	}, "--retention", "0s", "--hold-max-rows", "39")
	serves([]string{`postrider_retention_held_over 0`, `postrider_retention_held_rows{by="still"} 40`}, "--retention", "0s", "--hold-max-rows", "40")
}

// TestPruneFollowsTheSettings: what the flags of prune leave open is as in the settings of the outbox's relay.
func TestPruneFollowsTheSettings(t *testing.T) {
	st := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	mustCLI(t, "", "migrate", "--store", st)
	enqueued(t, st, 3)
	delivered(t, st, "--retention", "off")
	for _, yml := range []string{
		"retention: off\n", "relays: [{name: a, retention: off}]\n", "retention: 0s\nrelays: [{name: a, retention: off}, {name: b, store: 'sqlite:b.db'}]\n",
	} {
		got := cli(t, nil, "", "prune", "-c", writeFile(t, "store: "+st+"\n"+yml))
		if got.code != exit.Usage || !strings.Contains(got.err, "retention is off: give --older-than") {
			t.Errorf("%s: exit code %d, %s%s", yml, got.code, got.out, got.err)
		}
	}
	dir := t.TempDir()
	archive := writeFile(t, "store: "+st+"\nretention: 2160h\nretention_archive: "+dir+"\n")
	if out := mustCLI(t, "", "prune", "-c", archive); !strings.Contains(out, "0 rows") {
		t.Errorf("no row is 90 days old: %s", out)
	}
	var swept answer.Swept
	if err := json.Unmarshal([]byte(mustCLI(t, "", "prune", "-c", archive, "--older-than", "0s", "-o", "json")), &swept); err != nil || swept.Rows != 3 {
		t.Errorf("swept %+v, %v", swept, err)
	}
	if files, err := filepath.Glob(filepath.Join(dir, "outbox-*.jsonl")); err != nil || len(files) != 1 {
		t.Errorf("archives %v, %v", files, err)
	}
	enqueued(t, st, 2)
	delivered(t, st, "--retention", "off")
	if out := mustCLI(t, "", "prune", "-c", writeFile(t, "store: "+st+"\nretention: 0s\n")); !strings.Contains(out, "2 rows") {
		t.Errorf("rows that go at once: %s", out)
	}
}
