package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigShow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "postrider.yml")
	text := "store: postgres://ann:hunter2@db1/shop?sslmode=disable\nlog_level: warn\nrelays:\n  - name: stock\n    store: sqlite:stock.db\n    lease_ttl: 7s\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"POSTRIDER_POLL_MAX": "3s", "POSTRIDER_BROKER": "nats://bob:hunter2@n1:4222"}
	type setting struct{ Name, Value, From string }
	shown := func(args ...string) map[string]setting {
		t.Helper()
		got := cli(t, env, "", append([]string{"config", "show", "--config", file, "-o", "json"}, args...)...)
		if got.code != 0 || strings.Contains(got.out, "hunter2") {
			t.Fatalf("exit code %d, %s%s", got.code, got.out, got.err)
		}
		var all []setting
		if err := json.Unmarshal([]byte(got.out), &all); err != nil {
			t.Fatal(err)
		}
		by := map[string]setting{}
		for _, s := range all {
			by[s.Name] = s
		}
		return by
	}
	by := shown()
	for name, want := range map[string]setting{
		"store":     {"store", "postgres://db1/shop", file + ":1:8"},
		"log-level": {"log-level", "warn", file + ":2:12"},
		"broker":    {"broker", "nats://n1:4222", "environment POSTRIDER_BROKER"},
		"poll-max":  {"poll-max", "3s", "environment POSTRIDER_POLL_MAX"},
		"output":    {"output", "json", "flag"},
	} {
		if by[name] != want {
			t.Errorf("%s is %+v, want %+v", name, by[name], want)
		}
	}
	if _, there := by["lease-ttl"]; there {
		t.Error("a setting with its default is shown without --all")
	}
	if by = shown("--relay", "stock", "--all"); by["store"].Value != "sqlite:stock.db" || by["lease-ttl"].Value != "7s" || by["retention"].From != "default" {
		t.Errorf("the settings of relay stock are %+v", by)
	}
}

func TestConfigValidate(t *testing.T) {
	for text, want := range map[string]string{
		"store: 'memory:'\nbroker: 'memory:'\n":                                 "",
		"relays:\n  - name: a\n    store: 'memory:'\n":                          "",
		"stor: 'memory:'\n":                                                     "stor",
		"lease_ttl: soon\n":                                                     ":1:12: lease_ttl",
		"relays:\n  - name: a\n    store: nowhere://db\n":                       "relay a",
		"store: 'memory:'\nbroker: nats://\n":                                   "broker",
		"retention: 24h\nstatus_every: often\nstore: 'memory:'\n":               "status_every",
		"store: 'memory:'\nlisten: 70000\n":                                     `listen is "70000"`,
		"store: 'memory:'\nwindow: 10\npage: 256\n":                             "page is 256: it must be at most the window, 10",
		"store: 'memory:'\nlease_ttl: 1ms\nmax_attempts: -1\n":                  "max-attempts is -1: it must not be negative; lease-ttl is 1ms: it must be at least 100ms",
		"store: 'memory:'\nretry: 1s,-1s\n":                                     "retry is -1s: it must not be negative",
		"store: 'memory:'\nretention: -3h\n":                                    "retention is -3h: it must not be negative",
		"store: 'memory:'\nretention_rate: 0\n":                                 "retention-rate is 0: it must be at least 1 row per second",
		"store: 'memory:'\nkeep_dead: 1m\n":                                     "keep-dead is 1m",
		"store: 'memory:'\nclaim_above: 1MiB\n":                                 "claim-above needs a store on PostgreSQL",
		"relays:\n  - name: a\n    store: 'memory:'\n    retention: for ever\n": ":2:5: relay a: retention is \"for ever\"",
	} {
		file := filepath.Join(t.TempDir(), "p.yml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := cli(t, nil, "", "config", "validate", "--config", file)
		if want == "" && (got.code != 0 || !strings.Contains(got.out, "valid")) || want != "" && (got.code != 2 || !strings.Contains(got.err, want)) {
			t.Errorf("%q: exit code %d, %s%s; want %q", text, got.code, got.out, got.err, want)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	if got := cli(t, nil, "", "--version"); got.code != 0 || !strings.HasPrefix(got.out, "postrider ") || strings.Count(got.out, "\n") != 1 {
		t.Errorf("exit code %d, %q%s", got.code, got.out, got.err)
	}
}

// The tab key offers what the database has, and is silent where it cannot be asked.
func TestCompletionOfNames(t *testing.T) {
	file := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	complete := func(args ...string) string { return cli(t, nil, "", append([]string{"__complete"}, args...)...).out }
	if got := complete("dead", "list", "--store", file, "--topic", ""); strings.Contains(got, "orders") {
		t.Errorf("without a file there are the topics %q", got)
	}
	mustCLI(t, "", "migrate", "--store", file)
	mustCLI(t, `{"topic":"orders","key":"k","payload_text":"x"}`+"\n"+`{"topic":"stock\u001b[2J","key":"k","payload_text":"x"}`+"\n", "enqueue", "--store", file)
	if got := complete("dead", "list", "--store", file, "--topic", "o"); !strings.HasPrefix(got, "orders\n") || strings.Contains(got, "\x1b") {
		t.Errorf("the topics are %q", got)
	}
	if got := complete("doctor", "--only", ""); !strings.Contains(got, "privileges\n") {
		t.Errorf("the checks are %q", got)
	}
	if got := complete("status", "-o", ""); !strings.HasPrefix(got, "text\nwide\njson\njsonl\nyaml\ncsv\n") {
		t.Errorf("the formats are %q", got)
	}
}
