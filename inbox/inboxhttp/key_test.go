package inboxhttp

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
)

func TestKeys(t *testing.T) {
	for _, c := range []struct{ field, want string }{
		{`"8e03978e-40d5"`, "8e03978e-40d5"},
		{`8e03978e-40d5`, "8e03978e-40d5"},
		{` "a b" `, "a b"},
		{`"a;b,c";v=1`, "a;b,c"},
		{`"a\"b\\c"`, `a"b\c`},
		{`"` + strings.Repeat("k", maxKey) + `"`, strings.Repeat("k", maxKey)},
		{`""`, ""},
		{``, ""},
		{`"a`, ""},
		{`"a"b`, ""},
		{`"a\b"`, ""},
		{`"a\`, ""},
		{`a,b`, ""},
		{`a b`, ""},
		{"\"a\x01\"", ""},
		{"\"\u00e4\"", ""},
		{"\u00e4", ""},
		{`"` + strings.Repeat("k", maxKey+1) + `"`, ""},
	} {
		key, err := parseKey([]string{c.field})
		if key != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: key %q, error %v; want %q", c.field, key, err, c.want)
		}
	}
	if _, err := parseKey([]string{"a", "b"}); err == nil {
		t.Error("two fields were taken")
	}
	if key, err := parseKey(nil); key != "" || err != nil {
		t.Errorf("no field: %q, %v", key, err)
	}
}

func TestAnswersAreKeptAsTheyWere(t *testing.T) {
	a := newAnswer("print", 1000)
	a.Header().Set("Location", "/orders/1")
	a.Header().Add("Set-Cookie", "secret")
	a.Header().Set("Date", "now")
	a.WriteHeader(http.StatusEarlyHints)
	a.WriteHeader(http.StatusCreated)
	a.Header().Set("Too", "late")
	a.WriteHeader(http.StatusTeapot)
	if _, err := a.Write([]byte("one\ntwo")); err != nil || a.end() != nil {
		t.Fatal(err, a.end())
	}
	kept, err := a.encode()
	if err != nil || strings.Contains(string(kept), "secret") {
		t.Fatalf("%q, %v", kept, err)
	}
	again, err := decode(kept)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	again.send(w, true)
	h := w.Header()
	if w.Code != 201 || w.Body.String() != "one\ntwo" || h.Get("Location") != "/orders/1" || h.Get("Too")+h.Get("Date") != "" || h.Get(ReplayedHeader) != "true" {
		t.Errorf("%d %v %q", w.Code, h, w.Body)
	}
	if a.Fields.Get("Set-Cookie") != "secret" {
		t.Error("the first answer lost its cookie")
	}
	small := newAnswer("print", 10)
	if _, err := small.Write(make([]byte, 11)); err == nil || small.end() == nil {
		t.Error("an answer above the limit was taken")
	}
	if _, err := newAnswer("print", 10).encode(); err == nil {
		t.Error("a header above the limit was kept")
	}
	for _, bad := range []string{"", "x", "{}\n", `{"status":200}`} {
		if _, err := decode([]byte(bad)); err == nil {
			t.Errorf("%q was taken for an answer", bad)
		}
	}
}

func TestWhatIsFinal(t *testing.T) {
	for status, want := range map[int]bool{200: true, 201: true, 303: true, 402: true, 409: true, 408: false, 425: false, 429: false, 500: false, 503: false} {
		if final(status) != want {
			t.Errorf("%d: final %v", status, !want)
		}
	}
}

func TestDigestsTellPartsApart(t *testing.T) {
	if digest("ab", "c") == digest("a", "bc") || digest("a", "") == digest("a") {
		t.Error("two lists have one digest")
	}
}

// TestRefusalsBeforeAnyTransaction: none of these needs the database.
func TestRefusalsBeforeAnyTransaction(t *testing.T) {
	in := inbox.New(dialect.Postgres, "api", nil)
	caller := func(r *http.Request) string { return r.Header.Get("Account") }
	h := New[int](in, nil, caller, nil, &Options{Required: true, MaxBody: 4, Documentation: "https://example.com/keys"})
	for _, c := range []struct {
		key, account, body string
		want               int
	}{
		{"", "ann", "", 400},
		{`"half`, "ann", "", 400},
		{"k", "", "", 401},
		{"k", "ann", "12345", 413},
	} {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(c.body))
		if c.key != "" {
			r.Header.Set(KeyHeader, c.key)
		}
		r.Header.Set("Account", c.account)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.want || w.Header().Get("Content-Type") != "application/problem+json" || !strings.Contains(w.Body.String(), "https://example.com/keys") {
			t.Errorf("%+v: %d %s", c, w.Code, w.Body)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/orders", brokenBody{})
	r.Header.Set(KeyHeader, "k")
	r.Header.Set("Account", "ann")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 400 {
		t.Errorf("half a body: %d", w.Code)
	}
}

type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, errors.New("connection reset") }
