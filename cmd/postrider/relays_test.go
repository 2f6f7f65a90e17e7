package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/internal/testserver"
)

// readiness is what a probe is told.
type readiness struct {
	OK     bool
	Relays map[string]struct{ OK bool }
}

// probe asks a listener and returns the status and what it says of each relay.
func (p *process) probe(path string) (status int, answer readiness) {
	address := listens.FindStringSubmatch(p.said.String())
	if address == nil {
		return 0, answer
	}
	resp, err := http.Get("http://" + address[1] + path)
	if err != nil {
		return 0, answer
	}
	defer resp.Body.Close()
	_ = json.NewDecoder(resp.Body).Decode(&answer)
	return resp.StatusCode, answer
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "fleet.yml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Several tenants from one file: one database is down, one schema is missing, a
// second pipe reads the outbox of another. The others flow, the probe is red and
// says which, and each heals by itself.
//
// Promises: S
func TestTenantsFromOneFile(t *testing.T) {
	server, away := testserver.StartNATS(t), testserver.StartPostgres(t, "18")
	outbox := outboxOn(t, testserver.SharedPostgres(t, "18"))
	downURL := away.DatabaseURL("postgres")
	for _, args := range [][]string{
		{"migrate", "--store", outbox, "--schema", "two", "--lanes", "4"},
		{"migrate", "--store", downURL, "--lanes", "4"},
		{"pipe", "add", "copy", "--from", "now", "--store", outbox},
	} {
		mustCLI(t, "", args...)
	}
	do(t, away.Stop)
	s := newStream(t, server.URL, -1)
	yml := writeFile(t, `
broker: `+server.URL+`
store: `+outbox+`
listen: 127.0.0.1:0
lease_ttl: 1s
status_every: 10ms
relays:
  - name: one
  - name: two
    schema: two
    window: 64
  - name: copy
    pipe: copy
  - name: late
    schema: late
  - name: down
    store: `+downURL+`
`)
	place := redact.Place(outbox)
	p := launch(t, "relay", "-c", yml)
	write := func(args ...string) { mustCLI(t, s.message("k", 10), append([]string{"enqueue"}, args...)...) }
	write("--store", outbox)
	write("-c", yml, "--relay", "two")
	// The stream keeps the second pipe's copy of a message too.
	until(t, "three relays deliver while two cannot", p, func() bool {
		return s.count() == 3 && strings.Contains(p.metrics(), `postrider_delivered_total{pipe="copy",relay="copy",schema="",store="`+place+`"} 1`)
	})
	p.says(`msg="relay not started" relay=late`, 1)
	p.says(`relay=down part=store`, 1) // of the others a starved machine may say so too
	until(t, "the probe names who does not work", p, func() bool {
		status, a := p.probe("/readyz")
		return status == http.StatusServiceUnavailable && !a.OK && len(a.Relays) == 5 &&
			a.Relays["one"].OK && a.Relays["two"].OK && a.Relays["copy"].OK && !a.Relays["late"].OK && !a.Relays["down"].OK
	})
	if status, a := p.probe("/healthz"); status != http.StatusOK || !a.OK {
		t.Errorf("/healthz is %d, %+v: a restart would mend nothing", status, a)
	}
	m := p.metrics()
	for _, want := range []string{
		`postrider_delivered_total{pipe="main",relay="one",schema="",store="` + place + `"} 1`,
		`postrider_ready{pipe="main",relay="late",schema="late",`,
	} {
		if !strings.Contains(m, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}

	mustCLI(t, "", "migrate", "-c", yml, "--relay", "late", "--lanes", "4")
	do(t, away.Restart)
	write("-c", yml, "--relay", "late")
	write("--store", downURL)
	until(t, "all have healed", p, func() bool { status, _ := p.probe("/readyz"); return status == http.StatusOK && s.count() == 5 })
	if out := mustCLI(t, "", "status", "-c", yml, "--relay", "two", "-o", "json"); !strings.Contains(out, `"delivered":1`) {
		t.Errorf("status of relay two: %s", out)
	}
	p.stop()
	if n := p.said.count("relay stopped"); n != 5 {
		t.Errorf("%d of 5 relays say that they stopped:\n%s", n, p.said)
	}
}

// When none of the relays can work the process ends as a single one would.
// TestMigrateAllTenants: every outbox of a file's list is migrated once, one that fails
// does not keep the others waiting, and --relay means one of them.
func TestMigrateAllTenants(t *testing.T) {
	dir := t.TempDir()
	yml := filepath.Join(dir, "p.yml")
	text := "lanes: 8\nrelays:\n  - {name: a, store: 'sqlite:" + dir + "/a.db'}\n  - {name: a2, store: 'sqlite:" + dir + "/a.db', pipe: two}\n" +
		"  - {name: b, store: 'sqlite:" + dir + "/none/b.db'}\n  - {name: c, store: 'sqlite:" + dir + "/c.db'}\n"
	if err := os.WriteFile(yml, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := cli(t, nil, "", "migrate", "-c", yml, "--dry-run"); strings.Count(got.out, "outbox\n") != 3 {
		t.Errorf("a dry run prints\n%s%s", got.out, got.err)
	}
	got := cli(t, nil, "", "migrate", "-c", yml)
	if got.code != exit.Usage || !strings.Contains(got.err, "1 of 3 outboxes were not migrated: relay b: ") || strings.Count(got.err, "\n") != 1 {
		t.Errorf("exit code %d\n%s", got.code, got.err)
	}
	for _, done := range []string{"relay a: done", "relay c: done"} {
		if !strings.Contains(got.out, done) || strings.Contains(got.out, "relay a2") {
			t.Errorf("%q is missing:\n%s", done, got.out)
		}
	}
	if got := mustCLI(t, "", "migrate", "-c", yml, "--relay", "c"); !strings.Contains(got, "nothing to do") {
		t.Error(got)
	}
	if got := cli(t, nil, "", "migrate", "down", "--yes", "-c", yml); got.code != exit.Usage {
		t.Errorf("all outboxes are removed: exit code %d\n%s", got.code, got.out)
	}
}

func TestNoneOfTheRelaysWorks(t *testing.T) {
	pg := testserver.SharedPostgres(t, "18")
	yml := writeFile(t, `
broker: "memory:"
store: `+pg.Database(t)+`
listen: ""
relays: [{name: a}, {name: b, schema: other}]
`)
	p := launch(t, "relay", "-c", yml)
	if code := p.ends(3 * time.Minute); code != exit.Schema {
		t.Errorf("exit code %d, want %d:\n%s", code, exit.Schema, p.said)
	}
	for _, want := range []string{`relay a: `, `relay b: `, `schema "other" has no outbox: run`} {
		if p.said.count(want) == 0 {
			t.Errorf("not said: %s\n%s", want, p.said)
		}
	}
}

// TestAFlagWinsOverEveryEntry: what is typed holds for every relay of the file, also where its
// entry says otherwise.
func TestAFlagWinsOverEveryEntry(t *testing.T) {
	dir := t.TempDir()
	yml := writeFile(t, "broker: 'memory:'\nrelays:\n  - {name: a, store: 'sqlite:"+dir+"/a.db', broker: 'nats://entry:4222', pipe: main, retention: 1h, window: 64}\n"+
		"  - {name: b, store: 'sqlite:"+dir+"/b.db', pipe: main, retention: 2h}\n")
	a := &app{out: io.Discard, errOut: io.Discard, lookupEnv: func(name string) (string, bool) { return "from-environment", name == "POSTRIDER_PIPE" }}
	root := a.root()
	cmd, _, err := root.Find([]string{"relay"})
	if err != nil {
		t.Fatal(err)
	}
	cmd.InheritedFlags() // joins those of the root
	if err := cmd.ParseFlags([]string{"-c", yml, "--broker", "redis://typed:6379", "--retention", "typed"}); err != nil {
		t.Fatal(err)
	}
	if err := a.load(cmd); err != nil {
		t.Fatal(err)
	}
	p, err := a.process()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range p.Relays {
		if r.Open.Broker != "redis://typed:6379" || r.Open.Pipe != "main" || r.Open.Store != "sqlite:"+dir+"/"+r.Name+".db" {
			t.Errorf("relay %s has broker %s, pipe %s, store %s", r.Name, r.Open.Broker, r.Open.Pipe, r.Open.Store)
		}
	}
	if err := p.Check(); err == nil || !strings.Contains(err.Error(), `relay a: retention is "typed"`) {
		t.Errorf("checked: %v", err)
	}
	mustCLI(t, "", "migrate", "-c", yml)
	if got := cli(t, nil, "", "status", "-c", yml, "--pipe", "nosuch"); got.code == 0 || strings.Count(got.err, "nosuch") == 0 {
		t.Errorf("status of a pipe that is not there: exit code %d, %s%s", got.code, got.out, got.err)
	}
}

func TestMistakesOfAFleet(t *testing.T) {
	for _, tc := range []struct{ name, yml, want string }{
		{"no store", "broker: \"memory:\"\nrelays:\n  - name: a\n", "fleet.yml:3:5: relay a: no store: give --store"},
		{"bad option", "store: \"memory:\"\nbroker: \"memory:\"\nrelays:\n  - name: a\n    window: -1\n", "fleet.yml:4:5: relay a: window is -1: it must not be negative"},
		{"bad broker", "store: \"memory:\"\nrelays:\n  - name: a\n    broker: mqtt://u:hunter2@h\n", "fleet.yml:3:5: relay a: broker scheme \"mqtt\" is unknown"},
		{
			"housekeeping", "store: \"memory:\"\nbroker: \"memory:\"\nrelays:\n  - name: a\n  - name: b\n    pipe: b\n    keep_dead: 2160h\n  - name: c\n    pipe: c\n    retention: 2160h\n",
			"fleet.yml:8:5: relay c: retention is \"2160h0m0s\", and relay a of the same outbox has \"168h0m0s\": its rows are kept once, so give both the same value",
		},
		{
			"archive", "store: \"memory:\"\nbroker: \"memory:\"\nrelays:\n  - name: a\n  - name: b\n    pipe: b\n    retention_archive: 'command:cat'\n",
			"fleet.yml:5:5: relay b: retention-archive is \"command:cat\", and relay a of the same outbox has \"\"",
		},
		{"value", "relays:\n  - name: a\n    window: x\n", `fleet.yml:3:13: relay a: window: "x" cannot be used: it is not a number`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := cli(t, nil, "", "relay", "--listen", "", "-c", writeFile(t, tc.yml))
			if got.code != exit.Usage || !strings.Contains(got.err, tc.want) || strings.Contains(got.err, "hunter2") {
				t.Errorf("exit code %d, %s; want %s", got.code, got.err, tc.want)
			}
		})
	}
	got := cli(t, nil, "", "status", "--relay", "x", "-c", writeFile(t, "relays: [{name: a}]\n"))
	if got.code != exit.Usage || !strings.Contains(got.err, `relay is "x": the file has no entry`) {
		t.Errorf("exit code %d, %s", got.code, got.err)
	}
}
