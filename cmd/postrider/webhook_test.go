package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
)

const hookSecret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

// hooks is a receiver that counts by path; a path may answer otherwise.
type hooks struct {
	mu     sync.Mutex
	seen   map[string]int
	answer map[string]int
}

func (h *hooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !strings.HasPrefix(r.Header.Get("webhook-signature"), "v1,") {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	h.seen[r.URL.Path]++
	if status := h.answer[r.URL.Path]; status != 0 {
		w.WriteHeader(status)
	}
}

func (h *hooks) count(path string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen[path]
}

// The endpoints of a file get their topics; one that says 410 is stopped, also when its
// entry changes, until a person resumes it.
func TestWebhooks(t *testing.T) {
	h := &hooks{seen: map[string]int{}, answer: map[string]int{"/gone": http.StatusGone}}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	store, file, key := "sqlite:"+filepath.Join(dir, "shop.db"), filepath.Join(dir, "endpoints.yml"), filepath.Join(dir, "key")
	entry := "  - {name: %s, topics: [%s], url: %s/%s, secret_file: " + key + ", allow: 127.0.0.1%s}\n"
	write := func(note string) {
		text := "endpoints:\n" + fmt.Sprintf(entry, "gone", "bad.*", server.URL, "gone", note) + fmt.Sprintf(entry, "rest", "'*'", server.URL, "rest", "")
		for name, text := range map[string]string{file: text, key: hookSecret + "\n"} {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("")
	if got := cli(t, nil, "", "migrate", "--store", store); got.code != 0 {
		t.Fatal(got.err)
	}
	var lines strings.Builder
	for n := range 40 {
		fmt.Fprintf(&lines, "{\"topic\":%q,\"key\":\"k%d\",\"type\":\"t\",\"payload\":{}}\n", []string{"orders", "bad.one"}[n%2], n)
	}
	if got := cli(t, nil, lines.String(), "enqueue", "--store", store); got.code != 0 {
		t.Fatal(got.err)
	}
	p := launchRelay(t, store, "webhooks:"+file)
	until(t, "the endpoint that works has its messages", p, func() bool { return h.count("/rest") == 20 })
	until(t, "the endpoint that is gone was asked", p, func() bool { return h.count("/gone") > 0 })
	until(t, "the relay is told that the endpoint is stopped", p, func() bool { return p.said.count(`msg="stopped destinations changed"`) > 0 })
	before := h.count("/gone")
	h.mu.Lock()
	h.answer["/gone"] = 0
	h.mu.Unlock()
	write(", timeout: 10s")
	mustCLI(t, "", "resume", "--store", store, "--endpoint", "gone", "--reason", "they are back")
	until(t, "the resumed endpoint works", p, func() bool { return h.count("/gone") >= before+20 })
	p.stop()
}

// A stop by 410 is kept: status and journal show it, a relay that starts later does not ask
// the endpoint, and a command lets it continue.
func TestGoneIsKept(t *testing.T) {
	sqlite := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	mustCLI(t, "", "migrate", "--store", sqlite)
	for name, store := range map[string]string{"postgres": outboxOn(t, testserver.SharedPostgres(t, "18")), "sqlite": sqlite} {
		t.Run(name, func(t *testing.T) { goneIsKept(t, store) })
	}
}

func goneIsKept(t *testing.T, store string) {
	t.Helper()
	h := &hooks{seen: map[string]int{}, answer: map[string]int{"/gone": http.StatusGone}}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	file, key := filepath.Join(dir, "endpoints.yml"), filepath.Join(dir, "key")
	entry := "  - {name: %s, topics: [%s], url: %s/%s, secret_file: " + key + ", allow: 127.0.0.1}\n"
	text := "endpoints:\n" + fmt.Sprintf(entry, "gone", "bad", server.URL, "gone") + fmt.Sprintf(entry, "rest", "'*'", server.URL, "rest")
	for name, text := range map[string]string{file: text, key: hookSecret + "\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put := func() {
		t.Helper()
		mustCLI(t, "{\"topic\":\"bad\",\"type\":\"t\",\"payload\":{}}\n{\"topic\":\"good\",\"type\":\"t\",\"payload\":{}}\n", "enqueue", "--store", store)
	}
	put()
	p := launchRelay(t, store, "webhooks:"+file)
	until(t, "the relay notes it", p, func() bool { return p.said.count(`msg="destination stopped"`) > 0 })
	p.stop()
	asked := h.count("/gone")
	if out := mustCLI(t, "", "status", "--store", store); !strings.Contains(out, "endpoint gone since") || !strings.Contains(out, "by postrider: the endpoint has answered 410 Gone") {
		t.Errorf("status says\n%s", out)
	}
	h.mu.Lock()
	h.answer["/gone"] = 0
	h.mu.Unlock()
	put()
	p = launchRelay(t, store, "webhooks:"+file)
	until(t, "the other endpoint has its messages", p, func() bool { return h.count("/rest") == 2 })
	if n := h.count("/gone"); n != asked {
		t.Errorf("a later relay asked the endpoint %d times", n-asked)
	}
	mustCLI(t, "", "resume", "--store", store, "--endpoint", "gone", "--reason", "they are back")
	until(t, "the endpoint gets further requests", p, func() bool { return h.count("/gone") == asked+2 })
	p.stop()
	out := mustCLI(t, "", "journal", "--store", store)
	for _, want := range []string{"endpoint stop", "endpoint resume", "they are back"} {
		if !strings.Contains(out, want) {
			t.Errorf("the journal does not say %q:\n%s", want, out)
		}
	}
}
