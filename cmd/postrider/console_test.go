package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
)

// browser is a person before the console of a process.
type browser struct {
	t      *testing.T
	p      *process
	root   string // of the outbox
	client *http.Client
}

var consoleAddress = regexp.MustCompile(`console: (http\S+)`)

// openConsole starts a console and opens its first page.
func openConsole(t *testing.T, store string, more ...string) *browser {
	t.Helper()
	args := append([]string{"console", "--listen", "127.0.0.1:0", "--role", "admin", "--actor", "ann", "--store", store}, more...)
	return browse(t, launch(t, args...))
}

// browse opens the first page of the console that a process serves.
func browse(t *testing.T, p *process) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, p: p, client: &http.Client{Jar: jar, Timeout: time.Minute}}
	until(t, "the console listens", b.p, func() bool { return consoleAddress.MatchString(b.p.said.String()) })
	address := consoleAddress.FindStringSubmatch(b.p.said.String())[1]
	resp, err := b.client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	b.root = resp.Request.URL.String()
	return b
}

// page returns a page of the outbox, which has no error.
func (b *browser) page(path string) string {
	b.t.Helper()
	resp, err := b.client.Get(b.root + path)
	return b.body(path, resp, err)
}

func (b *browser) body(path string, resp *http.Response, err error) string {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.t.Fatalf("%s: status %d, %v\n%s\n%s", path, resp.StatusCode, err, body, b.p.said)
	}
	return string(body)
}

var hiddenField = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// do opens the form of an act, fills it and sends it. It returns the form and the answer.
func (b *browser) do(path string, fill ...string) (form, answer string) {
	b.t.Helper()
	form = b.page(path)
	until(b.t, "the records are counted", b.p, func() bool {
		counting := strings.Contains(form, ": counting</h1>")
		if counting {
			form = b.page(path)
		}
		return !counting
	})
	fields := url.Values{}
	for _, f := range hiddenField.FindAllStringSubmatch(form, -1) {
		fields.Add(f[1], f[2])
	}
	for i := 0; i+1 < len(fill); i += 2 {
		fields.Set(fill[i], fill[i+1])
	}
	action, _, _ := strings.Cut(path, "?")
	if at := regexp.MustCompile(`<form method="post" action="[^"]*/(payload)"`).FindStringSubmatch(form); at != nil {
		action = at[1]
	}
	resp, err := b.client.PostForm(b.root+action, fields)
	return form, b.body(path, resp, err)
}

// press presses a button of the embedding program.
func (b *browser) press(n int) {
	b.t.Helper()
	fields := url.Values{"extra": {strconv.Itoa(n)}}
	for _, f := range hiddenField.FindAllStringSubmatch(b.page(""), -1) {
		if f[1] == "token" {
			fields.Set("token", f[2])
		}
	}
	resp, err := b.client.PostForm(b.root+"extra", fields)
	b.body("extra", resp, err)
}

// A person sees dead letters in the console, grouped by cause, and sends them again by an order.
func TestConsole(t *testing.T) {
	file := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	mustCLI(t, "", "migrate", "--store", file, "--lanes", "8")
	broker := testserver.SharedNATS(t).URL
	maria := testserver.SharedMySQL(t, testserver.MariaDB10).Database(t)
	mustCLI(t, "", "migrate", "--store", maria, "--lanes", "8")
	for name, store := range map[string]string{"postgres": outboxOn(t, testserver.SharedPostgres(t, "18")), "mysql": maria, "sqlite": file} {
		t.Run(name, func(t *testing.T) {
			s := newStream(t, broker, 1000)
			relay := launchRelay(t, store, broker)
			mustCLI(t, s.message("key a", 4000)+s.message("key a", 20)+s.message("b", 4000)+s.message("c", 10), "enqueue", "--store", store)
			until(t, "two dead letters", relay, func() bool { return len(deadOf(t, store)) == 2 && s.count() == 1 })
			relay.stop()
			b := openConsole(t, store)
			for _, path := range []string{"", "lanes", "dead", "keys", "message", "pipes", "orders", "consumers", "doctor", "journal", "dead?topic=" + s.topic, "key?key=key+a"} {
				if body := b.page(path); !strings.Contains(body, "Same in a shell") {
					t.Errorf("page %q names no command:\n%s", path, body)
				}
			}
			id := deadOf(t, store)[0].ID
			if body := b.page("message?id=" + id); !strings.Contains(body, "Dead letter") || !strings.Contains(body, "Enqueued") {
				t.Errorf("the life of a dead message is\n%s", body)
			}
			if body := b.page("keys"); !strings.Contains(body, "2</span></h1>") || !strings.Contains(body, "key a") {
				t.Errorf("the blocked keys are\n%s", body)
			}
			_, body := b.do("message?id="+id, "reason", "the customer asks")
			if !strings.Contains(body, "4 000 bytes") && !strings.Contains(body, "bytes") || !strings.Contains(body, "shown as") {
				t.Errorf("the payload is not shown:\n%s", body)
			}
			s.limit(100_000)
			form, body := b.do("do/retry?topic="+s.topic, "reason", "the limit is raised")
			if !strings.Contains(form, "Retry 2 dead letters") || !strings.Contains(form, "postrider dead retry") {
				t.Errorf("the form is\n%s", form)
			}
			until(t, "the order is done without a relay", b.p, func() bool {
				body = b.page("orders")
				return strings.Contains(body, ">done<")
			})
			if body := b.page("journal"); !strings.Contains(body, "the limit is raised") || !strings.Contains(body, "read payload") || !strings.Contains(body, "the customer asks") {
				t.Errorf("the journal is\n%s", body)
			}
			relay = launchRelay(t, store, broker)
			until(t, "everything is sent", relay, func() bool { return s.count() == 4 })
			until(t, "the overview shows it", b.p, func() bool { return strings.Contains(b.page(""), "Everything has been sent.") })
			relay.stop()
			b.p.stop()
		})
	}
}

// TestConsoleOfSeveral: one console has the outboxes of a file's list, each with its consumers,
// which may have a database of their own.
func TestConsoleOfSeveral(t *testing.T) {
	dir := t.TempDir()
	shop, cash, billing := "sqlite:"+filepath.Join(dir, "shop.db"), "sqlite:"+filepath.Join(dir, "cash.db"), "sqlite:"+filepath.Join(dir, "billing.db")
	mustCLI(t, "", "migrate", "--store", shop)
	mustCLI(t, "", "migrate", "--store", cash)
	openWard(t, billing)
	file := filepath.Join(dir, "relays.yml")
	text := fmt.Sprintf("broker: 'memory:'\nrelays:\n  - {name: shop, store: '%s'}\n  - {name: cash, store: '%s'}\n  - {name: more, store: '%s', pipe: more}\n", shop, cash, cash)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"console", "--listen", "127.0.0.1:0", "--config", file}
	b := browse(t, launch(t, append(args, "--consumers", "shop="+billing)...))
	if home := b.page(""); !strings.Contains(home, "o/shop/") || !strings.Contains(home, "o/cash/") {
		t.Errorf("the outboxes are\n%s", home)
	}
	if page := b.page("o/shop/consumers"); !strings.Contains(page, patientConsumer) || !strings.Contains(page, "postrider status --consumer all --store STORE") {
		t.Errorf("the consumers of shop are\n%s", page)
	}
	if page := b.page("o/cash/consumers"); strings.Contains(page, patientConsumer) {
		t.Errorf("the consumers of cash are\n%s", page)
	}
	b.p.stop()
	taken, err := net.Listen("tcp", "127.0.0.1:0") // a console that accepts what is wrong ends here
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	args[2] = taken.Addr().String()
	for _, wrong := range []struct{ value, says string }{
		{billing, "--consumers names no relay: the file lists several outboxes: give RELAY=URL"},
		{"more=" + billing, `--consumers names relay "more", whose outbox the console serves under another relay`},
		{"bank=" + billing, `--consumers names relay "bank", which the file does not list`},
		{"shop=sqlite:" + filepath.Join(dir, "none.db"), "consumers: "},
		{"shop=memory:", "keeps no inbox"},
	} {
		if r := cli(t, nil, "", append(args, "--consumers", wrong.value)...); r.code == 0 || !strings.Contains(r.err, wrong.says) {
			t.Errorf("%s: exit code %d, %s", wrong.value, r.code, r.err)
		}
	}
	if r := cli(t, nil, "", append(args, "--consumers", "shop="+billing, "--consumers", "shop="+billing)...); r.code != 2 || !strings.Contains(r.err, "twice") {
		t.Errorf("exit code %d, %s", r.code, r.err)
	}
}

// A page offers no act that its store lacks, and gives the reason.
func TestConsoleOffersWhatItsStoreCan(t *testing.T) {
	b := openConsole(t, "memory:")
	for _, path := range []string{"orders", "journal"} {
		if page := b.page(path); !strings.Contains(page, "nothing in memory survives the process") {
			t.Errorf("the page %s gives no reason for what the store lacks:\n%s", path, page)
		}
	}
}

// An order that was begun in the console continues after the console was killed, and each of its
// messages is sent once.
func TestConsoleIsKilled(t *testing.T) {
	const n = 20
	broker := testserver.SharedNATS(t).URL
	store := outboxOn(t, testserver.SharedPostgres(t, "18"))
	s := newStream(t, broker, 1000)
	relay := launchRelay(t, store, broker)
	var lines strings.Builder
	for i := range n {
		lines.WriteString(s.message(fmt.Sprintf("key-%d", i), 2000))
	}
	mustCLI(t, lines.String(), "enqueue", "--store", store)
	until(t, "all are dead", relay, func() bool { return len(deadOf(t, store)) == n })
	relay.stop()
	s.limit(100_000)
	b := openConsole(t, store)
	b.do("do/retry?topic="+s.topic, "reason", "the limit is raised", "rate", "2")
	until(t, "the order has begun", b.p, func() bool { return len(deadOf(t, store)) < n })
	b.p.signal(syscall.SIGKILL)
	<-b.p.done
	if left := len(deadOf(t, store)); left == 0 {
		t.Fatal("the order was done before the console was killed")
	}
	relay = launchRelay(t, store, broker)
	until(t, "the relay has carried it out", relay, func() bool { return len(deadOf(t, store)) == 0 && s.count() == n })
	b = openConsole(t, store)
	until(t, "the order is done", b.p, func() bool { return strings.Contains(b.page("orders"), ">done<") })
	for i := range n {
		if got := mustCLI(t, "", "key", "show", fmt.Sprintf("key-%d", i), "--store", store); !strings.Contains(got, "no unsent message") {
			t.Errorf("key-%d: %s", i, got)
		}
	}
	if got := s.count(); got != n {
		t.Errorf("%d messages were sent, want %d", got, n)
	}
	relay.stop()
	b.p.stop()
}

// A console does not start where others than the user of this machine could act, and says why.
func TestConsoleRefusesToStart(t *testing.T) {
	line := regexp.MustCompile(`ann operator \S+ \S+`).FindString(mustCLI(t, "", "console", "token", "ann", "--role", "operator"))
	tokens, short, empty := writeFile(t, line+"\n"), writeFile(t, "x"), writeFile(t, "# nobody\n")
	for want, args := range map[string][]string{
		"there is no authentication":         {"--listen", "0.0.0.0:0"},
		"tokens would travel in clear":       {"--listen", ":0", "--tokens", tokens},
		"--proxy-secret-file":                {"--listen", ":0", "--proxy", "10.0.0.7/32"},
		"holds 1 bytes":                      {"--proxy", "10.0.0.7/32", "--proxy-secret-file", short},
		"no effect without --proxy":          {"--proxy-role", "*=viewer"},
		"does not go with --proxy":           {"--tokens", tokens, "--proxy", "10.0.0.7/32"},
		"use viewer, payload, operator":      {"--role", "root"},
		"the file has no token":              {"--tokens", empty},
		"--tls-cert and --tls-key together":  {"--tls-cert", "x"},
		"write a network such as":            {"--proxy", "10.0.0.7"},
		"write HOST:PORT":                    {"--listen", "9465"},
		"tls-cert and tls-key cannot be":     {"--tls-cert", short, "--tls-key", short, "--listen", "127.0.0.1:0"},
		"line 1: write NAME ROLE HASH":       {"--tokens", short},
		"no such file":                       {"--tokens", filepath.Join(t.TempDir(), "nowhere")},
		"proxy-role is \"staff\": write GRO": {"--proxy", "10.0.0.7/32", "--proxy-secret-file", tokens, "--proxy-role", "staff"},
	} {
		got := cli(t, nil, "", append([]string{"console", "--store", "memory:"}, args...)...)
		if got.code != 2 || !strings.Contains(got.err, want) {
			t.Errorf("%v: exit code %d, %q; want %q", args, got.code, got.err, want)
		}
	}
}

// The commands on the console's pages reach the outbox that it shows, and repeat no URL.
func TestConsoleCommandsReachTheOutbox(t *testing.T) {
	for want, a := range map[string]*app{
		"":                              {},
		"--store STORE":                 {typed: map[string]bool{"store": true}},
		"--store STORE --schema audit":  {typed: map[string]bool{"store": true, "schema": true}},
		"--relay shop":                  {relayName: "shop"},
		"--relay stock":                 {entry: "stock"},
		"--config 'my file' --relay sh": {typed: map[string]bool{"config": true}, configFile: "my file", relayName: "sh"},
	} {
		a.set.Store = "postgres://ann:hunter2@db/shop"
		if strings.Contains(want, "audit") {
			a.set.Schema = "audit"
		}
		if got := a.consoleFlags(); got != want {
			t.Errorf("the flags are %q, want %q", got, want)
		}
	}
}
