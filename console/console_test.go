package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// pagesOf are the pages of an outbox.
func pagesOf() []string {
	return []string{"", "lanes", "dead", "keys", "message", "pipes", "orders", "consumers", "doctor", "journal"}
}

// Every page answers under any prefix, and its links stay below it.
func TestPagesUnderAnyPrefix(t *testing.T) {
	for _, c := range []struct {
		name, prefix string
		opts         console.Options
	}{
		{"root", "", console.Options{}},
		{"stripped", "/ops/outbox", console.Options{}},
		{"own prefix", "/ops", console.Options{Prefix: "/ops"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.prefix, &c.opts)
			r.die("E1", "rejected", postrider.Message{Topic: "orders", Key: "k"})
			for _, page := range pagesOf() {
				status, body := r.get("/o/shop/" + page)
				if status != http.StatusOK || !strings.Contains(body, "postrider ") && page != "message" {
					t.Errorf("page %q: status %d\n%s", page, status, body)
				}
				for _, absolute := range []string{`href="/`, `src="/`, `action="/`} {
					if strings.Contains(body, absolute) {
						t.Errorf("page %q has an absolute path: %s", page, absolute)
					}
				}
			}
			status, body := r.get("/") // leads to the only outbox
			if status != http.StatusOK || !strings.Contains(body, "1 key is blocked.") {
				t.Errorf("the first page: status %d\n%s", status, body)
			}
			if status, _ := r.get("/static/console.css"); status != http.StatusOK {
				t.Errorf("the style has status %d", status)
			}
		})
	}
}

// A page that does not exist, and an outbox that a user may not see, look the same.
func TestUnknownPages(t *testing.T) {
	r := newRig(t, "", &console.Options{Authenticate: func(*http.Request) (console.User, error) {
		return console.User{Name: "bob", Roles: map[string]console.Role{"other": console.Admin}}, nil
	}})
	for _, path := range []string{"/o/shop/", "/o/nowhere/", "/o/shop@audit/", "/o/shop/nothing", "/nothing"} {
		if status, body := r.get(path); status != http.StatusNotFound || !strings.Contains(body, "Page not found") {
			t.Errorf("%s: status %d\n%s", path, status, body)
		}
	}
	if status, _ := r.get("/"); status != http.StatusForbidden {
		t.Errorf("the first page has status %d for a user without a role", status)
	}
}

// A console without an Authenticate function refuses everybody.
func TestClosedByDefault(t *testing.T) {
	c := console.New([]console.Outbox{{Name: "shop", Store: memstore.New(nil), Office: memstore.New(nil).Office()}}, nil)
	defer c.Close()
	r := &rig{T: t, console: c}
	r.serve(c)
	for _, path := range []string{"/", "/o/shop/", "/o/shop/events"} {
		if status, body := r.get(path); status != http.StatusForbidden || !strings.Contains(body, "Authenticate") {
			t.Errorf("%s: status %d\n%s", path, status, body)
		}
	}
}

// A mistake in the arguments is found before the first page, and answers every page.
func TestCheck(t *testing.T) {
	st := memstore.New(nil)
	good := console.Outbox{Name: "shop", Store: st, Office: st.Office()}
	for want, c := range map[string]*console.Console{
		"no outbox":            console.New(nil, nil),
		"two outboxes":         console.New([]console.Outbox{good, good}, nil),
		"missing store":        console.New([]console.Outbox{{Name: "shop"}}, nil),
		"a name has letters":   console.New([]console.Outbox{{Name: "a/b", Store: st, Office: st.Office()}}, nil),
		"must begin with":      console.New([]console.Outbox{good}, &console.Options{Prefix: "ops/"}),
		"origin \"example.com": console.New([]console.Outbox{good}, &console.Options{Origins: []string{"example.com"}}),
	} {
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check = %v, want %q in it", err, want)
		}
		r := &rig{T: t, console: c}
		r.serve(c)
		if status, _ := r.get("/"); status != http.StatusInternalServerError {
			t.Errorf("%s: status %d", want, status)
		}
	}
}

// A dead letter is retried and another one discarded, by forms alone: pages work without scripts.
func TestRetryAndDiscardByForm(t *testing.T) {
	r := newRig(t, "/ops", nil)
	r.die("E7", "field 17 is missing", postrider.Message{Topic: "orders", Key: "a"}, postrider.Message{Topic: "stock", Key: "b"}, postrider.Message{Topic: "stock", Key: "b"})
	_, body := r.get("/o/shop/dead")
	if !strings.Contains(body, "do/retry?code=E7") || !strings.Contains(body, "field … is missing") {
		t.Fatalf("the page has no group with its acts:\n%s", body)
	}
	_, body = r.get("/o/shop/do/retry?code=E7&topic=orders")
	for _, want := range []string{"Retry 1 dead letter", "postrider dead retry ", "--reason WHY", "1 record"} {
		if !strings.Contains(body, want) {
			t.Errorf("the form does not name %q:\n%s", want, body)
		}
	}
	form := url.Values{"topic": {"orders"}, "reason": {"the shop is repaired"}, "token": {tokenField.FindStringSubmatch(body)[1]}}
	status, body := r.send(http.MethodPost, "/o/shop/do/retry", form)
	if status != http.StatusOK || !strings.Contains(body, "<dd>done</dd>") || !strings.Contains(body, "No relay is alive") {
		t.Errorf("status %d\n%s", status, body)
	}
	form.Set("topic", "stock")
	form.Set("counted", "1")
	if status, body = r.send(http.MethodPost, "/o/shop/do/discard", form); status != http.StatusOK || !strings.Contains(body, "<dd>done</dd>") {
		t.Errorf("status %d\n%s", status, body)
	}
	left, err := r.st.Office().Admin.Parked(t.Context(), ops.ParkedQuery{})
	if err != nil || len(left) != 2 {
		t.Fatalf("%d records are left, want the retried one and the one that waited: %v", len(left), err)
	}
	for _, l := range left {
		if l.State == store.Dead {
			t.Errorf("record %d is still dead", l.Seq)
		}
	}
}

// An act without a reason, and a form without a record, change nothing.
func TestIncompleteForms(t *testing.T) {
	r := newRig(t, "", nil)
	r.die("E1", "e", postrider.Message{Topic: "orders", Key: "a"})
	token := r.token("/o/shop/do/retry?topic=orders")
	for name, form := range map[string]url.Values{
		"reason":    {"topic": {"orders"}, "reason": {" "}},
		"selection": {"reason": {"r"}},
		"number":    {"seq": {"x"}, "reason": {"r"}},
		"long":      {"topic": {"orders"}, "reason": {strings.Repeat("r", 501)}},
	} {
		form.Set("token", token)
		if status, body := r.send(http.MethodPost, "/o/shop/do/discard", form); status != http.StatusBadRequest {
			t.Errorf("%s: status %d\n%s", name, status, body)
		}
	}
	left, err := r.st.Office().Admin.Parked(t.Context(), ops.ParkedQuery{State: store.Dead})
	if err != nil || len(left) != 1 {
		t.Errorf("%d dead letters are left, want 1: %v", len(left), err)
	}
}

// A key is paused and resumed, and the pages show it.
func TestPauseAKey(t *testing.T) {
	r := newRig(t, "", nil)
	form := url.Values{"key": {"customer 7"}, "reason": {"stocktaking"}, "token": {r.token("/o/shop/do/pause?key=customer+7")}}
	if status, body := r.send(http.MethodPost, "/o/shop/do/pause", form); status != http.StatusOK || !strings.Contains(body, "<dd>done</dd>") {
		t.Fatalf("status %d\n%s", status, body)
	}
	if _, body := r.get("/o/shop/keys"); !strings.Contains(body, "customer 7") || !strings.Contains(body, ">paused<") {
		t.Errorf("the paused key is not shown:\n%s", body)
	}
	if _, body := r.get("/o/shop/"); !strings.Contains(body, "1 key is blocked.") {
		t.Errorf("the overview does not show the paused key:\n%s", body)
	}
	if status, _ := r.send(http.MethodPost, "/o/shop/do/resume", form); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	if _, body := r.get("/o/shop/keys"); !strings.Contains(body, "No key is blocked.") {
		t.Errorf("the key is still shown:\n%s", body)
	}
}

// A payload is shown after its reading was noted, and not at all where nobody notes it.
func TestPayload(t *testing.T) {
	var notes []console.Read
	note := func(r console.Read) { notes = append(notes, r) }
	r := newRig(t, "", &console.Options{NoteRead: noteWith(note)})
	r.die("E1", "e", postrider.Message{Topic: "orders", Key: "a", Payload: []byte(`{"secret":"42"}`), Headers: map[string]string{"h": "header value"}})
	all, err := r.st.Office().Admin.Parked(t.Context(), ops.ParkedQuery{})
	if err != nil {
		t.Fatal(err)
	}
	page := "/o/shop/message?id=" + all[0].Message.ID
	if _, body := r.get(page); strings.Contains(body, "secret") || strings.Contains(body, "header value") {
		t.Errorf("the page shows the payload:\n%s", body)
	}
	form := url.Values{"seq": {"1"}, "id": {all[0].Message.ID}, "reason": {"a customer asks"}, "token": {r.token(page)}}
	status, body := r.send(http.MethodPost, "/o/shop/payload", form)
	if status != http.StatusOK || !strings.Contains(body, "secret") || !strings.Contains(body, "header value") {
		t.Errorf("status %d\n%s", status, body)
	}
	if len(notes) != 1 || notes[0] != (console.Read{Outbox: "shop", Pipe: "main", Actor: "ann", Reason: "a customer asks", Seq: 1}) {
		t.Errorf("noted %+v", notes)
	}

	form.Set("reason", strings.Repeat("r", 501))
	if status, body := r.send(http.MethodPost, "/o/shop/payload", form); status != http.StatusBadRequest || strings.Contains(body, "secret") || len(notes) != 1 {
		t.Errorf("a long reason: status %d, %d notes\n%s", status, len(notes), body)
	}

	closed := newRig(t, "", nil)
	closed.die("E1", "e", postrider.Message{Topic: "orders", Key: "a", Payload: []byte("secret")})
	form = url.Values{"seq": {"1"}, "reason": {"r"}, "token": {closed.token("/o/shop/do/discard?topic=orders")}}
	if status, body := closed.send(http.MethodPost, "/o/shop/payload", form); status != http.StatusForbidden || strings.Contains(body, "secret") {
		t.Errorf("status %d\n%s", status, body)
	}
}

// The figures come as events, and each has what the overview shows.
func TestEvents(t *testing.T) {
	r := newRig(t, "", nil)
	r.die("E1", "e", postrider.Message{Topic: "orders", Key: "a"})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.server.URL+"/o/shop/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var got struct {
			Dead, Blocked, Level string
			Lanes                []string
		}
		if err := json.Unmarshal([]byte(data), &got); err != nil {
			t.Fatal(err)
		}
		if got.Dead != "1" || got.Blocked != "1" || got.Level != "warning" || len(got.Lanes) != 8 {
			t.Errorf("the event has %+v", got)
		}
		return
	}
	t.Fatal("no event came", lines.Err())
}

// bounded is an admin whose status is a bound.
type bounded struct{ ops.Admin }

func (b bounded) Status(ctx context.Context) (ops.Status, error) {
	st, err := b.Admin.Status(ctx)
	st.Lag, st.LagCapped, st.Pending, st.Capped = 2*time.Hour, true, 2000, true
	if len(st.Lanes) > 0 {
		l := &st.Lanes[0]
		l.Lag, l.LagCapped, l.Pending, l.Delivered = st.Lag, true, st.Pending, 1
	}
	return st, err
}

// Figures that are bounds are shown as bounds, on each page that has them.
func TestBoundsAreMarked(t *testing.T) {
	st := memstore.New(nil)
	office := *st.Office()
	office.Admin = bounded{office.Admin}
	c := console.New([]console.Outbox{{Name: "shop", Store: st, Office: &office}, {Name: "mail", Store: st, Office: &office}}, &console.Options{
		Authenticate: func(*http.Request) (console.User, error) { return console.User{Name: "ann", Role: console.Viewer}, nil },
	})
	defer c.Close()
	for _, page := range []string{"/", "/o/shop/", "/o/shop/lanes"} {
		w := httptest.NewRecorder()
		c.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, page, nil))
		if body := w.Body.String(); !strings.Contains(body, "at most 2 h") {
			t.Errorf("%s: the lag is not marked as a bound:\n%s", page, body)
		}
	}
}
