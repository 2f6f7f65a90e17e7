package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/demo"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/testserver"
)

// bookFiles returns the names of the operator's pages.
func bookFiles() []string {
	return []string{"runbook.md", "postgres.md", "brokers.md", "relay.md", "sizing.md", checksFile}
}

const checksFile = "reference/doctor.md"

func readDoc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// book is the operator's pages, with a server on which their commands are run: each
// in a database of its own, made from the same template.
type book struct {
	*testing.T
	text string
	pg   *testserver.Postgres
	seq  string // of a dead letter
	made int
}

// bookConsumer has a dead letter too.
const bookConsumer = `INSERT INTO postrider.inbox_attempt
(consumer, message_id, topic, key, type, origin, attempts, state, next_at, updated_at, payload, headers)
VALUES ('billing', '01890a5d-ac96-774b-bcce-b302099a8057', 'orders', 'o-1', 'placed', 'orders/0@1', 5, 'dead', now(), now(), '', '{}')`

// bookTemplate has messages, a dead letter that holds its key, and two pipes.
const bookTemplate = `
INSERT INTO postrider.outbox (topic, key, type) SELECT 'orders', 'o-' || g, 'placed' FROM generate_series(1, 20) g;
INSERT INTO postrider.parked (pipe, lane, seq, state, captures, due_at, attempts, class, code, error, first_failed, last_attempt,
 created_at, version, schema_version, id, topic, key, type, content_type, headers, payload)
SELECT 'main', lane, seq, 'dead', true, clock_timestamp(), 1, 'rejected', 'MESSAGE_TOO_LARGE', 'too large', clock_timestamp(), clock_timestamp(),
 created_at, version, schema_version, id, topic, key, type, content_type, headers, payload FROM postrider.outbox WHERE key = 'o-1'`

func openBook(t *testing.T) *book {
	t.Helper()
	var text strings.Builder
	for _, name := range bookFiles() {
		text.WriteString(readDoc(t, name))
	}
	pg := testserver.StartPostgres(t, "18") // of its own: roles are made
	b := &book{T: t, text: text.String(), pg: pg}
	b.query("postgres", `CREATE DATABASE book`)
	for _, role := range []string{"shop_app", "shop_relay", "billing_app", "grafana", "alice"} {
		b.query("postgres", `CREATE ROLE `+role+` LOGIN`)
	}
	store := pg.DatabaseURL("book")
	mustCLI(t, "", "migrate", "--store", store, "--lanes", "8", "--roles")
	mustCLI(t, "", "pipe", "add", "reports", "--from", "beginning", "--store", store, "--reason", "test", "--actor", "test")
	mustCLI(t, "", "pipe", "pause", "reports", "--store", store, "--reason", "test", "--actor", "test")
	b.query("book", bookTemplate)
	for _, sql := range inbox.Schema(dialect.Postgres, "") {
		b.query("book", sql)
	}
	b.query("book", bookConsumer)
	b.query("postgres", `CREATE DATABASE page_0 TEMPLATE book`)
	b.seq = b.query("book", `SELECT seq FROM postrider.parked`)[0][0]
	return b
}

func (b *book) query(database, sql string) [][]string {
	b.Helper()
	rows, err := b.pg.Query(b.Context(), database, sql)
	if err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
	return rows
}

// database is a fresh copy of the template.
func (b *book) database() string {
	b.made++
	name := fmt.Sprintf("page_%d", b.made)
	b.query("postgres", `CREATE DATABASE `+name+` TEMPLATE book`)
	return name
}

var (
	fenced    = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```")
	spanned   = regexp.MustCompile("`([^`\n]+)`")
	statement = regexp.MustCompile(`^(SELECT|INSERT|UPDATE|DELETE|VACUUM|ALTER|GRANT|REVOKE|COMMIT PREPARED|ROLLBACK PREPARED|CREATE|DROP)\b.* `)
)

// pieces are the commands and statements of a document: every line of its blocks
// marked sh or sql, and every span in its text that is one.
func pieces(text string) []string {
	var found []string
	seen := map[string]bool{}
	add := func(line string) {
		line, _, _ = strings.Cut(line, "  #")
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") && !seen[line] {
			seen[line] = true
			found = append(found, line)
		}
	}
	for _, m := range fenced.FindAllStringSubmatch(text, -1) {
		if m[1] == "sh" {
			for line := range strings.Lines(strings.ReplaceAll(m[2], "\\\n", " ")) {
				add(line)
			}
		}
		if m[1] == "sql" {
			for _, s := range strings.Split(m[2], ";\n") {
				add(s)
			}
		}
	}
	for _, m := range spanned.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		if strings.HasPrefix(m[1], "postrider ") || strings.HasPrefix(m[1], "psql ") || statement.MatchString(m[1]) {
			add(m[1])
		}
	}
	return found
}

// notRun are pieces that stand for themselves, with the reason.
func notRun() map[string]string {
	return map[string]string{
		"GRANT EXECUTE ON FUNCTION postrider.lock_keys TO":                        "a part of a statement; roles make it whole",
		"INSERT INTO postrider.key_version (topic, key, version, seq) SELECT ...": "the SELECT is the reader's",
		"postrider order show ID":                                                 "the id is the one that an order prints",
		"postrider order cancel ID":                                               "the same",
		"postrider size":                                                          "needs the reader's rate and size; docs/sizing.md has whole commands",
		"postrider init":                                                          "writes into the working directory; TestInitFileIsAccepted runs it",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 OTEL_SERVICE_NAME=shop-relay postrider relay": "runs until it is stopped; TestTelemetry runs it",
		"postrider check --samples samples.jsonl":                                                        "the file is the reader's",
		"postrider demo":                   "TestDemoByItself runs it",
		"SELECT pg_terminate_backend(PID)": "PID is in the doctor's finding; the test of that check runs it",
	}
}

// codes are the exit codes of commands that do not end with 0, by their beginning.
func (b *book) wants(command string, code exit.Code) bool {
	switch {
	case strings.HasPrefix(command, "postrider doctor"):
		return code == exit.OK || code == exit.Findings
	case strings.HasPrefix(command, "postrider status") && strings.Contains(command, "--fail-if-lag"):
		return code == exit.OK || code == exit.Lag
	case strings.HasPrefix(command, "postrider audit"): // the template's dead letter was never read
		return code == exit.OK || code == exit.Findings
	case command == "postrider health": // TestServiceManager has a relay there
		return code == exit.Unreachable
	case command == "postrider migrate down": // asks for --yes
		return code == exit.Usage
	}
	return code == exit.OK
}

// TestOperatingCommands runs what the book shows.
func TestOperatingCommands(t *testing.T) {
	b := openBook(t)
	all := pieces(b.text)
	if len(all) < 25 {
		t.Fatalf("the book shows only %d commands", len(all))
	}
	skip := notRun()
	for _, piece := range all {
		if skip[piece] != "" {
			continue
		}
		t.Run(strings.ReplaceAll(piece, "/", "|"), func(t *testing.T) {
			b := &book{T: t, text: b.text, pg: b.pg, seq: b.seq, made: b.made}
			b.run(piece)
		})
		b.made++
	}
}

func (b *book) run(piece string) {
	b.Helper()
	name := "page_0" // one for all that change nothing
	if !regexp.MustCompile(`^(postrider (doctor|status|version|journal|dead (list|show)|migrate status|pipe list)|SELECT)\b`).MatchString(piece) {
		name = b.database()
	}
	words := split(piece)
	switch {
	case words[0] == "postrider":
		b.postrider(piece, name, words[1:])
	case words[0] == "psql" && len(words) == 3 && words[1] == "-c":
		b.query(name, words[2])
	case statement.MatchString(piece + " "):
		for _, s := range strings.Split(piece, ";") {
			b.query(name, s)
		}
	default:
		b.Errorf("the book shows %q, which no test can run", piece)
	}
}

// postrider runs a command with the names in capitals replaced, and the database
// that it would find in its environment.
func (b *book) postrider(piece, database string, args []string) {
	b.Helper()
	store := b.pg.DatabaseURL(database)
	for i, arg := range args {
		if u, err := url.Parse(arg); err == nil && u.Scheme == "postgres" {
			args[i] = store
		}
		switch arg {
		case "SEQ":
			args[i] = b.seq
		case "PIPE":
			args[i] = "reports"
		case "TOPIC":
			args[i] = "orders"
		case "KEY":
			args[i] = "o-1"
		case "VERSION":
			args[i] = "7"
		case "LANE":
			args[i] = "1"
		case "DIR":
			args[i] = b.TempDir()
		case "NAME":
			args[i] = "billing"
		case "WHY", "REASON":
			args[i] = "test"
		}
	}
	env := map[string]string{
		"POSTRIDER_STORE": store, "POSTRIDER_BROKER": "memory:", "POSTRIDER_ACTOR": "test", "POSTRIDER_LISTEN": "127.0.0.1:0",
		"POSTRIDER_CONFIG": filepath.Join(b.TempDir(), "none.yml"),
	}
	if args[0] == "health" { // asks, and does not listen: nothing answers at this port
		env["POSTRIDER_LISTEN"] = "127.0.0.1:1"
	}
	if err := os.WriteFile(env["POSTRIDER_CONFIG"], nil, 0o600); err != nil {
		b.Fatal(err)
	}
	got := b.until(env, args, func(out string) bool {
		switch {
		case args[0] == "relay":
			rows, err := b.pg.Query(b.Context(), database, `SELECT count(*) FROM postrider.relay`)
			return err == nil && rows[0][0] != "0"
		case strings.Contains(piece, "--watch"):
			return strings.Contains(out, "pending")
		case strings.Contains(piece, "--loop"):
			return strings.Contains(out, "removed")
		case strings.Contains(piece, "audit --every"):
			return strings.Contains(out, "PIPE")
		}
		return false
	})
	if !b.wants(piece, got.code) {
		b.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
}

// until runs a command to its end, or until enough is true.
func (b *book) until(env map[string]string, args []string, enough func(out string) bool) result {
	b.Helper()
	stdin, end := io.Pipe()
	var out, errOut safeBuffer
	env[demo.WithParent] = "1" // it ends when its stdin does
	ctx, cancel := context.WithTimeout(b.Context(), 3*time.Minute)
	defer cancel()
	done := make(chan exit.Code, 1)
	go func() {
		done <- run(args, stdin, &out, &errOut, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case code := <-done:
			_ = end.Close() // it ended by itself
			return result{code, out.String(), errOut.String()}
		case <-ctx.Done():
			b.Fatalf("no end within three minutes\n%s%s", out.String(), errOut.String())
		case <-tick.C:
			if enough(out.String()) {
				_ = end.Close() // asks it to end
			}
		}
	}
}

// split cuts a line into words as a shell does, as far as the book needs it.
func split(line string) []string {
	var words []string
	var word strings.Builder
	var quote rune
	begun := false
	for _, r := range line + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, begun = r, true
		case quote == 0 && r == ' ':
			if begun {
				words = append(words, word.String())
				word.Reset()
				begun = false
			}
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	return words
}

// TestOperatingNamesEveryCheck: the table of the doctor's checks is complete.
func TestOperatingNamesEveryCheck(t *testing.T) {
	db := outboxOn(t, testserver.SharedPostgres(t, "18"))
	mustCLI(t, "", "migrate", "inbox", "--store", db) // a consumer lives beside the outbox
	got := cli(t, nil, "", "doctor", "--store", db, "-o", "json", "--fail-on", "never", "--broker", "memory:", "--timeout", "30s")
	var d admin.Diagnosis
	if err := json.Unmarshal([]byte(got.out), &d); err != nil || len(d.Findings) < 30 {
		t.Fatalf("%d findings, %v: %s", len(d.Findings), err, got.err)
	}
	named := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(readDoc(t, checksFile), -1) {
		for _, name := range spanned.FindAllStringSubmatch(row[1], -1) {
			named[name[1]] = false
		}
	}
	for _, f := range d.Findings {
		if _, ok := named[f.Check]; !ok {
			t.Errorf("the check %q is not in %s", f.Check, checksFile)
		}
		named[f.Check] = true
	}
	for name, is := range named {
		if !is {
			t.Errorf("%s names the check %q, which does not exist", checksFile, name)
		}
	}
}

// safeBuffer is written by a command and read by its test.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
