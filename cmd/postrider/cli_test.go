package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/demo"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/store/sqlitestore"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// asProgram is a variable with which this binary is the program.
const asProgram = "TEST_BINARY_IS_POSTRIDER"

// TestMain lets the demo start this binary as its children, and shells as the program.
func TestMain(m *testing.M) {
	if os.Getenv(demo.WithParent) != "" || os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

type result struct {
	code     exit.Code
	out, err string
}

// cli runs the program in this process, with an environment of its own.
func cli(t *testing.T, env map[string]string, stdin string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	code := run(args, strings.NewReader(stdin), &out, &errOut, func(k string) (string, bool) {
		v, ok := env[k]
		return v, ok
	})
	return result{code, out.String(), errOut.String()}
}

// Every mistake is one line that says what to do, with its exit code.
func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	yml := filepath.Join(dir, "bad.yml")
	if err := os.WriteFile(yml, []byte("store: sqlite:x.db\nlog_levl: debug\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		code exit.Code
		want string
		env  map[string]string
		args []string
	}{
		{"no store", 2, "no store: give --store", nil, []string{"status"}},
		{"no scheme", 2, `store "shop.db" has no scheme`, nil, []string{"status", "--store", "shop.db"}},
		{"unknown scheme", 2, `store scheme "oracle" is unknown: use postgres`, nil, []string{"status", "--store", "oracle://u:hunter2@h/db"}},
		{"unknown broker", 2, `broker scheme "mqtt" is unknown: use kafka`, nil, []string{"relay", "--store", "memory:", "--broker", "mqtt://u:hunter2@h"}},
		{"bad DSN", 2, "cannot be used", nil, []string{"status", "--store", "postgres://u:hunter2%zz@h:port/db"}},
		{"bad DSN in the environment", 2, "cannot be used", map[string]string{"POSTRIDER_STORE": "postgres://u:hunter2%zz@h:port/db"}, []string{"status"}},
		{"unreachable", 4, "the database cannot be reached", nil, []string{"status", "--store", "postgres://u:hunter2@127.0.0.1:1/db?connect_timeout=2"}},
		{"bad schema name", 2, `schema "a-b" is not an identifier`, nil, []string{"status", "--store", "postgres://h/db", "--schema", "a-b"}},
		{"bad YAML", 2, yml + `:2:1: unknown setting "log_levl": did you mean "log_level"?`, nil, []string{"status", "-c", yml}},
		{"bad flag", 2, "unknown flag: --stroe; see `postrider status --help`", nil, []string{"status", "--stroe", "x"}},
		{"bad number", 2, `environment POSTRIDER_WINDOW: "many" cannot be used: it is not a number`, map[string]string{"POSTRIDER_WINDOW": "many"}, []string{"relay"}},
		{"too many lanes", 2, "lanes is 5000: use 1 to 4096", nil, []string{"migrate", "--lanes", "5000", "--store", "sqlite:nowhere.db"}},
		{"unknown version", 2, fmt.Sprintf("to is 99: this program knows the versions 1 to %d", sqlitestore.Version), nil, []string{"migrate", "up", "--to", "99", "--store", "sqlite:nowhere.db"}},
		{"which SQL", 2, "--store postgres: or --store sqlite:", nil, []string{"migrate", "--print-sql"}},
		{"no file", 5, "there is no file nowhere.db", nil, []string{"status", "--store", "sqlite:nowhere.db"}},
		{"no file for a relay", 5, "there is no file nowhere.db", nil, []string{"relay", "--store", "sqlite:nowhere.db", "--broker", "memory:"}},
		{"no outbox in SQLite", 5, "run `postrider migrate`", nil, []string{"migrate", "status", "--store", "sqlite:nowhere.db"}},
		{"no folder", 2, "the database file cannot be opened", nil, []string{"migrate", "--store", "sqlite:no/such/folder/shop.db"}},
		{"no SQLite", 2, "not an SQLite database", nil, []string{"status", "--store", "sqlite:" + yml}},
		{"message limit", 2, "max-message-bytes must be a number from 1024 to", nil, []string{"relay", "--store", "memory:", "--broker", "kafka://h?max-message-bytes=1"}},
		{"bad value", 2, `invalid duration "soon"`, nil, []string{"relay", "--lease-ttl", "soon"}},
		{"bad environment", 2, "environment POSTRIDER_LEASE_TTL", map[string]string{"POSTRIDER_LEASE_TTL": "soon"}, []string{"relay"}},
		{"bad output", 2, `output is "xml": use text, wide, json, jsonl, yaml or csv`, nil, []string{"version", "-o", "xml"}},
		{"bad level", 2, "log-level", nil, []string{"version", "--log-level", "loud"}},
		{"open listener", 2, "add --listen-remote", nil, []string{"relay", "--store", "memory:", "--broker", "memory:", "--listen", "0.0.0.0:0"}},
		{"all interfaces", 2, "add --listen-remote", nil, []string{"relay", "--store", "memory:", "--broker", "memory:", "--listen", ":9464"}},
		{"unknown command", 2, `unknown command or argument "frob"`, nil, []string{"frob"}},
		{"down without yes", 2, "add --yes", nil, []string{"migrate", "down", "--store", "memory:"}},
		{"no such record", 1, "record 7 is not parked", nil, []string{"dead", "retry", "7", "--store", "memory:"}},
		{"bad record", 2, `"x" is not a record number`, nil, []string{"dead", "show", "x", "--store", "memory:"}},
		{"TLS that is not understood", 2, "tls must be true or false", nil, []string{"relay", "--store", "memory:", "--broker", "kafka://u:hunter2@h?tls=yes"}},
		{"NATS TLS that is not understood", 2, "tls must be true or false", nil, []string{"relay", "--store", "memory:", "--broker", "nats://u:hunter2@h?tls=1"}},
		{"sasl without user", 2, "sasl needs a user", nil, []string{"relay", "--store", "memory:", "--broker", "kafka://h?sasl=plain"}},
		{"compression", 2, "unknown compression: use none, gzip", nil, []string{"relay", "--store", "memory:", "--broker", "kafka://h?compression=rar"}},
		{"webhook without secret", 2, "has no secret", nil, []string{"relay", "--store", "memory:", "--broker", "https://u:hunter2@h/hunter2"}},
		{"webhook in clear", 2, "insecure=true", nil, []string{"relay", "--store", "memory:", "--broker", "http://u:hunter2@h/hunter2#unsigned=true"}},
		{"webhook setting", 2, "setting secret: is unknown", nil, []string{"relay", "--store", "memory:", "--broker", "https://h#secret=hunter2"}},
		{"webhooks without file", 2, "nowhere.yml: cannot be read: no such file", nil, []string{"relay", "--store", "memory:", "--broker", "webhooks:nowhere.yml"}},
		{"kafka without host", 2, "a host is missing", nil, []string{"relay", "--store", "memory:", "--broker", "kafka://u:hunter2@/"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := cli(t, tc.env, "", tc.args...)
			if got.code != tc.code {
				t.Errorf("exit code = %d, want %d", got.code, tc.code)
			}
			if !strings.Contains(got.err, tc.want) {
				t.Errorf("stderr = %q, want %q in it", got.err, tc.want)
			}
			if strings.Count(strings.TrimSpace(got.err), "\n") != 0 || strings.Contains(got.err, "goroutine") {
				t.Errorf("stderr is more than one line:\n%s", got.err)
			}
			if strings.Contains(got.err+got.out, "hunter2") {
				t.Errorf("the password was printed: %s", got.err)
			}
			if n := strings.Count(got.err, "connection refused"); n > 1 {
				t.Errorf("one refusal is said %d times: %s", n, got.err)
			}
			if _, err := os.Stat("nowhere.db"); err == nil {
				_ = os.Remove("nowhere.db")
				t.Error("a look has made the file")
			}
		})
	}
}

func TestHelpIsGolden(t *testing.T) {
	for _, args := range [][]string{{}, {"relay"}, {"migrate"}, {"status"}, {"doctor"}, {"enqueue"}, {"dead"}, {"dead", "retry"}, {"pipe"}, {"pipe", "add"}, {"pipe", "remove"}, {"partitions"}, {"partitions", "tend"}, {"demo"}, {"check"}, {"guard"}, {"guard", "set"}, {"prune"}, {"journal"}, {"migrate", "inbox"}, {"adopt"}, {"console"}, {"console", "token"}} {
		name := strings.Join(append([]string{"help"}, args...), "-") + ".golden"
		t.Run(name, func(t *testing.T) {
			got := cli(t, nil, "", append(args, "--help")...)
			file := filepath.Join("testdata", name)
			if *update {
				if err := os.WriteFile(file, []byte(got.out), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got.code != 0 || got.out != string(want) {
				t.Errorf("exit code %d, help differs from %s (go test -run TestHelpIsGolden -update):\n%s", got.code, file, got.out)
			}
		})
	}
}

func TestCompletionForFourShells(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := cli(t, map[string]string{"POSTRIDER_LEASE_TTL": "soon"}, "", "completion", shell); got.code != 0 || !strings.Contains(got.out, "postrider") {
			t.Errorf("completion %s: code %d, %d bytes, %s", shell, got.code, len(got.out), got.err)
		}
	}
}

func TestEnqueueNamesTheLine(t *testing.T) {
	good := `{"topic":"t","key":"k","type":"a","payload":{"n":1}}` + "\n"
	for _, tc := range []struct{ name, in, want string }{
		{"syntax", good + "{oops\n", "line 2: column 2: not valid JSON; nothing is written"},
		{"unknown field", good + good + `{"topic":"t","paylaod":1}`, `line 3: unknown field "paylaod"; 2 messages up to line 2 are written`},
		{"no topic", good + "\n" + `{"key":"k"}`, "line 3: topic is empty"},
		{"wrong kind", `{"topic":7}`, "line 1: topic must be a string"},
		{"no object", `[1, 2]`, "line 1: must be a JSON object; nothing is written"},
		{"wrong number", `{"topic":"t","version":"x"}`, "line 1: version must be a whole number"},
		{"wrong time", `{"topic":"t","not_before":"tomorrow"}`, "line 1: not_before must be a time such as"},
		{"more behind", `{"topic":"t"} {"topic":"t"}`, "line 1: column 15: unexpected text behind the JSON object"},
		{"two payloads", `{"topic":"t","payload":1,"payload_text":"x"}`, "line 1: give one of payload"},
		{"after a batch", strings.Repeat(good, 4) + "{", "line 5: the JSON object does not end; 4 messages up to line 4 are written"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := cli(t, nil, tc.in, "enqueue", "--store", "memory:", "--batch", "2")
			if got.code != 1 || !strings.Contains(got.err, tc.want) {
				t.Errorf("code %d, stderr %q, want %q", got.code, got.err, tc.want)
			}
		})
	}
	got := cli(t, nil, good+good+good, "enqueue", "--store", "memory:", "-o", "json")
	if got.code != 0 || got.out != "{\"enqueued\":3}\n" {
		t.Errorf("code %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
}

func TestDryRunMakesNoFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shop.db")
	got := cli(t, nil, "", "migrate", "--dry-run", "--store", "sqlite:"+file)
	if got.code != 0 || !strings.Contains(got.out, "would do") {
		t.Errorf("code %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the dry run made the file")
	}
}

func TestStatusJSON(t *testing.T) {
	got := cli(t, nil, "", "status", "--store", "memory:", "-o", "json", "--fail-if-lag", "60s")
	var found answer.Status
	if err := json.Unmarshal([]byte(got.out), &found); err != nil || got.code != 0 || len(found.Lanes) != 64 || len(found.Parked) != 4 {
		t.Errorf("code %d, %d lanes, %v: %s", got.code, len(found.Lanes), err, got.err)
	}
}
