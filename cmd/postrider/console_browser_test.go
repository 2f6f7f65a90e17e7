package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/internal/testserver"
	driver "github.com/postrider/postrider/internal/testserver/browser"
)

// step is one thing that a person does with a page, personal is an act of them, looked is how pages are seen.
type (
	step     map[string]string
	personal struct {
		Name  string `json:"name"`
		Steps []step `json:"steps"`
	}
	looked struct {
		Theme string   `json:"theme"`
		Width int      `json:"width"`
		Axe   bool     `json:"axe"`
		Save  string   `json:"save,omitempty"`
		Full  bool     `json:"full,omitempty"`
		Pages []string `json:"pages"`
	}
)

// seenPage is what the script of the browser reports.
type seenPage struct {
	Path, Theme, Act, Error, Text string
	Script                        bool
	Status, Wide, Marked, Width   int
	Wrong, Axe                    []string
}

// drive lets a real browser do what the job says.
func drive(t *testing.T, job map[string]any) (all []seenPage) {
	t.Helper()
	b, err := driver.Find()
	if err != nil {
		testserver.GiveUp(t, err)
	}
	in, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := b.Command("testdata/console.mjs")
	var failed bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &failed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the browser: %v\n%s", err, failed.String())
	}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var one seenPage
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		all = append(all, one)
	}
	return all
}

const hostile = `<img src=x onerror=alert(1)>'\"</script><script>alert(2)</script>`

// because fills the form of an act and sends it.
func because(reason string) []step {
	return []step{{"fill": "#reason", "with": reason}, {"click": "form.stackform button"}, {"see": "main h1"}}
}

// deedsOf are all acts, on keys from n on, and the pipe of that name.
func deedsOf(reason, topic, settled string, n int, pipe string) []personal {
	key := func(i int) string { return fmt.Sprintf("key?key=key-%d", n+i) }
	click := func(name, at, target string) personal {
		return personal{name, append([]step{{"open": at}, {"click": target}}, because(reason)...)}
	}
	return []personal{
		click("retry one", key(0), "main >> text=Retry…"),
		click("discard one", key(1), "main >> text=Discard…"),
		click("skip one", key(2), "main >> text=Skip…"),
		click("pause a key", key(3), "text=Pause this key…"),
		click("resume a key", key(3), "main >> text=Resume…"),
		{"retry some", append([]step{
			{"open": "dead?topic=" + topic},
			{"check": fmt.Sprintf("tr:has-text('key-%d') input", n+4)},
			{"check": fmt.Sprintf("tr:has-text('key-%d') input", n+5)},
			{"click": ".bar button"},
		}, because(reason)...)},
		click("retry all of a key", fmt.Sprintf("dead?topic=%s&key=key-%d", topic, n+6), ".bar a.button"),
		click("pause a lane", "lanes", "td.do >> text=Pause"),
		click("resume a lane", "lanes", "td.do >> text=Resume"),
		click("pause a pipe", "pipes", "tr:has-text('main') >> text=Pause"),
		click("resume a pipe", "pipes", "tr:has-text('main') >> text=Resume"),
		{"pause a destination", append([]step{{"open": "do/pause-destination?destination=nowhere"}}, because(reason)...)},
		click("resume a destination", "", "#attention >> text=Resume it"),
		click("remove a pipe", "pipes", "tr:has-text('"+pipe+"') >> text=Remove"),
		click("replay", "message?id="+settled, "main >> text=Replay…"),
		{"cancel an order", append([]step{
			{"open": "do/discard?topic=" + topic + "&key=key-" + fmt.Sprint(n+7)},
			{"fill": "#rate", "with": "0.001"},
			{"fill": "#reason", "with": reason},
			{"click": "form.stackform button"},
			{"click": "text=Cancel…"},
		}, because(reason)...)},
		{"read a payload", []step{{"open": key(8)}, {"click": "main dd a"}, {"fill": "#why", "with": reason}, {"click": "text=Show payload"}, {"see": "pre"}}},
	}
}

// Every page in a real browser: no script error, no violated policy, no serious finding of axe,
// nothing wider than the window, no markup of a message. Every act works with and without
// JavaScript, and the journal has each of them. With POSTRIDER_SHOTS the pictures are kept.
func TestConsoleInBrowser(t *testing.T) {
	if _, err := driver.Find(); err != nil {
		testserver.GiveUp(t, err)
	}
	store := outboxOn(t, testserver.SharedPostgres(t, "18"))
	consoleInBrowser(t, store, func(key string) string {
		return ask(t, store, `SELECT id::text FROM postrider.outbox WHERE key = '`+key+`'`)
	})
}

// The same on MariaDB: no page or act needs PostgreSQL.
func TestConsoleInBrowserOnMySQL(t *testing.T) {
	if os.Getenv("POSTRIDER_MATRIX") != "1" {
		t.Skip("every page and act in a browser once more: make matrix")
	}
	if _, err := driver.Find(); err != nil {
		testserver.GiveUp(t, err)
	}
	server := testserver.SharedMySQL(t, testserver.MariaDB10)
	store := server.Database(t)
	mustCLI(t, "", "migrate", "--store", store, "--lanes", "8")
	consoleInBrowser(t, store, func(key string) string {
		found, err := server.Query(t.Context(), store[strings.LastIndex(store, "/")+1:], "SELECT id FROM postrider_outbox WHERE `key` = '"+key+"'")
		if err != nil || len(found) != 1 {
			t.Fatalf("messages of key %s: %q, error %v", key, found, err)
		}
		return found[0][0]
	})
}

// consoleInBrowser looks at every page of an empty outbox's console and does every act. idOf
// returns the id of a key's only message.
func consoleInBrowser(t *testing.T, store string, idOf func(key string) string) {
	t.Helper()
	broker := testserver.SharedNATS(t).URL
	s := newStream(t, broker, 1000)
	relay := launchRelay(t, store, broker)
	var lines strings.Builder
	const keys = 18 // with the hostile one below the 20 at which a destination is braked
	for i := range keys {
		lines.WriteString(s.message(fmt.Sprintf("key-%d", i), 2000) + s.message(fmt.Sprintf("key-%d", i), 10))
	}
	lines.WriteString(s.message("fine", 10) + s.message("also fine", 10))
	fmt.Fprintf(&lines, `{"topic":%q,"key":"%s","type":"%s","headers":{"x":"%s"},"payload_text":"%s"}`+"\n", s.topic, hostile, hostile, hostile, strings.Repeat("x", 2000))
	mustCLI(t, lines.String(), "enqueue", "--store", store)
	until(t, "all are dead", relay, func() bool { return len(deadOf(t, store)) == keys+1 && s.count() == 2 })
	relay.stop()
	mustCLI(t, "", "pipe", "add", "second", "--from", "now", "--store", store)
	mustCLI(t, "", "pipe", "add", "third", "--from", "now", "--store", store)
	settled := idOf("fine")
	other := idOf("also fine")
	dead := deadOf(t, store)
	last := dead[len(dead)-1]
	b := openConsole(t, store)

	pages := []string{
		"", "?span=2d", "lanes", "dead", "dead?topic=" + s.topic, "keys", "key?key=key-3", "message", "message?id=" + last.ID, "message?id=" + settled, "pipes",
		"orders", "consumers", "doctor", "journal", "do/retry?all=1", "do/discard?seq=" + fmt.Sprint(last.Seq),
	}
	matrix := os.Getenv("POSTRIDER_MATRIX") == "1"
	shots := os.Getenv("POSTRIDER_SHOTS")
	looks := []looked{{"light", 1280, true, shots, true, pages}, {"dark", 360, true, shots, true, pages}}
	if matrix {
		looks = append(looks, looked{"dark", 1280, true, shots, true, pages}, looked{"light", 360, true, shots, true, pages})
	}
	byScript := append([]personal{
		{"live", []step{{"open": ""}, {"changes": "[data-live=at]"}}},
		{"search", []step{{"open": ""}, {"press": "/"}, {"type": "key-3"}, {"press": "Enter"}, {"see": "h1:has-text('key-3')"}}},
	}, deedsOf("in a browser", s.topic, settled, 0, "second")...)
	seen := drive(t, map[string]any{
		"root": b.root, "looks": looks, "scripts": []bool{true, false},
		"acts": byScript, "plain": deedsOf("without a script", s.topic, other, 9, "third"),
	})
	if want := len(looks)*len(pages) + len(byScript)*2 - 2; len(seen) != want {
		t.Errorf("the browser reports %d pages and acts, want %d", len(seen), want)
	}
	for _, p := range seen {
		if p.Act == "" {
			t.Logf("%-60s %-5s %4d px: %d serious findings of axe, %d px too wide, %d errors", p.Path, p.Theme, p.Width, len(p.Axe), p.Wide, len(p.Wrong))
		} else {
			t.Logf("%-60s script %v: %d errors", p.Act, p.Script, len(p.Wrong))
		}
		where := fmt.Sprintf("%s%s (%s, %d, script %v)", p.Path, p.Act, p.Theme, p.Width, p.Script)
		if p.Error != "" || len(p.Wrong) > 0 || len(p.Axe) > 0 || p.Wide > 0 || p.Marked > 0 || p.Act == "" && p.Status != 200 {
			t.Errorf("%s: status %d, %d px too wide, %d elements of a message, error %q, wrong %q, axe %q\n%s", where, p.Status, p.Wide, p.Marked, p.Error, p.Wrong, p.Axe, p.Text)
		}
		if strings.Contains(p.Text, "Refused") || strings.Contains(p.Text, "could not be made") {
			t.Errorf("%s ends with\n%s", where, p.Text)
		}
	}
	var entries []answer.Entry
	if err := json.Unmarshal([]byte(mustCLI(t, "", "journal", "-o", "json", "--limit", "1000", "--store", store)), &entries); err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{"in a browser", "without a script"} {
		var acts []string
		for _, e := range entries {
			if e.Reason == reason && !slices.Contains(acts, e.Act) {
				acts = append(acts, e.Act)
			}
		}
		slices.Sort(acts)
		if want := 10; len(acts) < want {
			t.Errorf("the journal has the acts %q %s, want at least %d", acts, reason, want)
		}
	}
	b.p.stop()
}
