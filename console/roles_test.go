package console_test

import (
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/console"
)

// allowed is what each role may, by the path behind the outbox. The first word tells who: "all",
// or the roles besides admin.
func allowed() map[string]string {
	m := map[string]string{"POST payload": "payload", "POST extra": ""}
	for _, page := range append(pagesOf(), "key", "find", "order", "events") {
		m["GET "+page] = "viewer payload operator"
	}
	for _, deed := range []string{
		"retry", "discard", "skip", "replay", "pause", "resume", "pause-destination", "resume-destination", "pause-pipe", "resume-pipe", "cancel-order",
	} {
		m["GET do/"+deed], m["POST do/"+deed] = "operator", "operator"
	}
	m["GET do/remove-pipe"], m["POST do/remove-pipe"] = "", ""
	return m
}

// Every endpoint by every role: what a role may not is 403, and an endpoint that this list does
// not name fails the test.
func TestRoles(t *testing.T) {
	r := newRig(t, "", &console.Options{Extras: []console.Extra{{Label: "x"}}})
	matrix := allowed()
	seen := map[string]bool{}
	consoles := map[console.Role]*console.Console{}
	for _, role := range append(console.Roles(), "") {
		consoles[role] = r.consoleFor(role)
	}
	for _, e := range r.console.Endpoints() {
		if e.Open() {
			continue
		}
		name := e.Method + " " + strings.TrimSuffix(strings.TrimPrefix(e.Path, "/o/{at}/"), "{$}")
		may, known := matrix[name]
		if !known {
			t.Errorf("%s is not in the matrix of roles", name)
		}
		seen[name] = true
		for _, role := range append(console.Roles(), "") {
			want := role == console.Admin || role != "" && strings.Contains(may, string(role))
			t.Run(fmt.Sprintf("%s by %q", name, role), func(t *testing.T) {
				status := statusOf(t, consoles[role], e)
				switch {
				case role == "" && status != http.StatusNotFound:
					t.Errorf("status %d, want 404: a user without a role does not learn that the outbox exists", status)
				case role != "" && want == (status == http.StatusForbidden):
					t.Errorf("status %d; allowed is %v", status, want)
				}
			})
		}
	}
	for name := range matrix {
		if !seen[name] {
			t.Errorf("%s is in the matrix and not served", name)
		}
	}
}

// consoleFor returns a closed console for a user of a role: its streams end after one event.
func (r *rig) consoleFor(role console.Role) *console.Console {
	c := console.New([]console.Outbox{{Name: "shop", Store: r.st, Office: r.st.Office()}}, &console.Options{
		Authenticate: func(*http.Request) (console.User, error) { return console.User{Name: "ann", Role: role}, nil },
		Secret:       []byte("shared"), Extras: []console.Extra{{Label: "x"}},
	})
	c.Close()
	return c
}

// statusOf sends a request of a role with a valid token, and without what would make it act.
func statusOf(t *testing.T, c *console.Console, e console.Endpoint) int {
	t.Helper()
	token := console.TokenFor(c, "ann", "cookie")
	path := strings.ReplaceAll(strings.TrimSuffix(e.Path, "{$}"), "{at}", "shop")
	req := httptest.NewRequestWithContext(t.Context(), e.Method, path, strings.NewReader(url.Values{"token": {token}, "extra": {"7"}}.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.AddCookie(&http.Cookie{Name: "postrider-form", Value: "cookie"})
	w := httptest.NewRecorder()
	c.ServeHTTP(w, req)
	return w.Code
}

// No form is taken without its token, with that of another user, or from another site.
func TestForeignForms(t *testing.T) {
	r := newRig(t, "", &console.Options{Extras: []console.Extra{{Label: "x"}}})
	r.die("E1", "e", postrider.Message{Topic: "orders", Key: "a"})
	token := r.token("/o/shop/do/discard?topic=orders")
	posts := 0
	for _, e := range r.console.Endpoints() {
		if e.Method != http.MethodPost {
			continue
		}
		posts++
		path := strings.ReplaceAll(e.Path, "{at}", "shop")
		for name, c := range map[string]struct {
			form   url.Values
			header []string
		}{
			"no token":        {url.Values{"topic": {"orders"}, "reason": {"r"}}, nil},
			"another token":   {url.Values{"topic": {"orders"}, "reason": {"r"}, "token": {strings.Repeat("0", 64)}}, nil},
			"another site":    {url.Values{"topic": {"orders"}, "reason": {"r"}, "token": {token}}, []string{"Sec-Fetch-Site", "cross-site"}},
			"another origin":  {url.Values{"topic": {"orders"}, "reason": {"r"}, "token": {token}}, []string{"Origin", "https://evil.example"}},
			"a sister's page": {url.Values{"topic": {"orders"}, "reason": {"r"}, "token": {token}}, []string{"Sec-Fetch-Site", "same-site"}},
		} {
			if status, body := r.send(http.MethodPost, path, c.form, c.header...); status != http.StatusForbidden {
				t.Errorf("%s with %s: status %d\n%s", path, name, status, body)
			}
		}
	}
	if posts < 14 {
		t.Errorf("%d forms were tried: the list is not complete", posts)
	}
	// A token is of one user and of one browser.
	for _, other := range [][2]string{{"bob", "cookie"}, {"ann", "other"}} {
		c := console.New([]console.Outbox{{Name: "shop", Store: r.st, Office: r.st.Office()}}, &console.Options{
			Authenticate: func(*http.Request) (console.User, error) { return console.User{Name: "ann", Role: console.Admin}, nil }, Secret: []byte("shared"),
		})
		defer c.Close()
		form := url.Values{"topic": {"orders"}, "reason": {"r"}, "token": {console.TokenFor(c, other[0], other[1])}}
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/o/shop/do/discard", strings.NewReader(form.Encode()))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.AddCookie(&http.Cookie{Name: "postrider-form", Value: "cookie"})
		w := httptest.NewRecorder()
		if c.ServeHTTP(w, req); w.Code != http.StatusForbidden {
			t.Errorf("a token of %v has status %d", other, w.Code)
		}
	}
}

// hostile are texts that would do something where they are taken for more than text.
func hostile(n int) string {
	return fmt.Sprintf(`<script>alert(%d)</script><img src=x onerror=alert(%[1]d)>"'> javascript:alert(%[1]d) {{.User}} `+"\u202e\u200b\x01\x9f", n)
}

var tag = regexp.MustCompile(`(?is)<script[^>]*>.*?</script>|<[a-z][^>]*>`)

// Text of messages, errors and people is text on every page: no tag, no attribute and no link is
// made of it, and no character reorders or hides what people read.
func TestHostileText(t *testing.T) {
	evil := func(n int) string { return strings.ReplaceAll(strings.ReplaceAll(hostile(n), "\x01", ""), "\x9f", "") }
	r := newRig(t, "", &console.Options{
		NoteRead: noteWith(func(console.Read) {}),
		Authenticate: func(*http.Request) (console.User, error) {
			return console.User{Name: hostile(9), Role: console.Admin}, nil
		},
	})
	m := postrider.Message{
		Topic: evil(1), Key: evil(2), Type: evil(3), ContentType: evil(4), Payload: []byte(hostile(5)), Headers: map[string]string{`<script>alert(6)</script>`: evil(7)},
	}
	r.die("E<b>", hostile(8), m, m)
	hold := url.Values{"key": {evil(2)}, "reason": {hostile(10)}, "token": {r.token("/o/shop/do/pause?key=k")}}
	if status, body := r.send(http.MethodPost, "/o/shop/do/pause", hold); status != http.StatusOK {
		t.Fatalf("status %d\n%s", status, body)
	}
	q := url.QueryEscape(hostile(2))
	paths := []string{
		"dead?topic=" + q, "dead?error=" + q, "dead?key=" + q, "key?key=" + q, "find?q=" + q, "journal?by=" + q + "&act=" + q, "message?seq=1", "message?id=" + q,
		"do/retry?seq=1", "do/retry?topic=" + q, "do/discard?key=" + q, "do/pause?key=" + q, "do/resume-destination?destination=" + q, "do/replay?topic=" + q, "order?id=" + q, q,
	}
	shown := 0
	check := func(what, body string) {
		for _, found := range tag.FindAllString(body, -1) {
			if strings.Contains(html.UnescapeString(found), "alert(") && !plainAttribute(found) {
				t.Errorf("%s: a tag is made of text: %s", what, found)
			}
		}
		if i := strings.IndexAny(body, "\u202e\u200b\x01\u009f"); i >= 0 && !inAttribute(body, i) {
			t.Errorf("%s: an invisible character is written: %q", what, body[max(i-60, 0):min(i+20, len(body))])
		}
		if strings.Contains(body, "alert(") {
			shown++
		}
	}
	for _, page := range append(paths, pagesOf()...) {
		status, body := r.get("/o/shop/" + page)
		if status >= http.StatusInternalServerError {
			t.Errorf("%s: status %d\n%s", page, status, body)
		}
		check(page, body)
	}
	_, body := r.send(http.MethodPost, "/o/shop/payload", url.Values{"seq": {"1"}, "reason": {hostile(11)}, "token": {hold.Get("token")}})
	for _, n := range []string{"alert(5)", "alert(6)", "alert(7)"} {
		if !strings.Contains(body, n) {
			t.Errorf("the payload page does not show %s:\n%s", n, body)
		}
	}
	check("payload", body)
	if shown < 20 {
		t.Errorf("hostile text is on %d pages alone: the test looks in the wrong place", shown)
	}
}

// plainAttribute reports whether a tag has hostile text inside of the quotes of a harmless
// attribute alone.
func plainAttribute(found string) bool {
	bare := regexp.MustCompile(`\s(value|title|href|placeholder|aria-label|content)="[^"<>]*"`).ReplaceAllString(found, "")
	link := regexp.MustCompile(`href="([^"]*)"`).FindStringSubmatch(found)
	return !strings.Contains(bare, "alert(") && (link == nil || strings.HasPrefix(link[1], "./"))
}

// inAttribute reports whether a place of a page is the value of a field, which must stay as it is.
func inAttribute(body string, i int) bool {
	before := body[:i]
	return strings.LastIndex(before, ` value="`) > strings.LastIndex(before, ">")
}

// Every answer has the policy, and no page has a script or a style of its own.
func TestPolicy(t *testing.T) {
	r := newRig(t, "", nil)
	for _, path := range []string{"/o/shop/", "/nothing", "/static/console.js", "/o/shop/do/retry?all=1"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		policy := resp.Header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "require-trusted-types-for 'script'", "frame-ancestors 'none'", "form-action 'self'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: the policy lacks %s: %s", path, want, policy)
			}
		}
		if strings.Contains(policy, "unsafe") || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, resp.Header)
		}
	}
	inline := regexp.MustCompile(`(?i)<script(?:[^>]*src=)?[^>]*>[^<]|\sstyle="|\son[a-z]+="`)
	for _, page := range pagesOf() {
		_, body := r.get("/o/shop/" + page)
		if found := inline.FindString(body); found != "" {
			t.Errorf("page %q: %s", page, found)
		}
	}
}
