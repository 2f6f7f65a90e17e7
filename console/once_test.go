package console_test

import (
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

var hidden = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// form returns the hidden fields of a page, and a reason.
func (r *rig) form(path string) url.Values {
	r.Helper()
	_, body := r.get(path)
	v := url.Values{"reason": {"r"}}
	for _, f := range hidden.FindAllStringSubmatch(body, -1) {
		v.Add(f[1], f[2])
	}
	return v
}

// A form acts once, however often it is sent. One that was refused may be repaired and sent again.
func TestFormActsOnce(t *testing.T) {
	r := newRig(t, "", nil)
	form := r.form("/o/shop/do/pause?key=k")
	form.Set("reason", "")
	if status, body := r.send(http.MethodPost, "/o/shop/do/pause", form); status != http.StatusBadRequest {
		t.Fatalf("without a reason: status %d\n%s", status, body)
	}
	form.Set("reason", "stocktaking")
	form.Del("key")
	if status, body := r.send(http.MethodPost, "/o/shop/do/pause", form); status != http.StatusBadRequest {
		t.Fatalf("without a key: status %d\n%s", status, body)
	}
	form.Set("key", "k")
	if status, body := r.send(http.MethodPost, "/o/shop/do/pause", form); status != http.StatusOK {
		t.Fatalf("status %d\n%s", status, body)
	}
	if status, body := r.send(http.MethodPost, "/o/shop/do/pause", form); status != http.StatusConflict || !strings.Contains(body, "this form was sent already") {
		t.Errorf("sent again: status %d\n%s", status, body)
	}
	if status, body := r.send(http.MethodPost, "/o/shop/do/pause", r.form("/o/shop/do/pause?key=k")); status != http.StatusOK {
		t.Errorf("another form for the same: status %d\n%s", status, body)
	}
}

// What cannot be taken back concerns no more records than the page has counted.
func TestDiscardTakesWhatWasCounted(t *testing.T) {
	r := newRig(t, "", nil)
	r.die("E1", "e", postrider.Message{Topic: "orders"})
	token := r.token("/o/shop/do/discard?topic=orders")
	if got := r.form("/o/shop/do/discard?topic=orders").Get("counted"); got != "1" {
		t.Errorf("the form says that %q were counted", got)
	}
	r.die("E1", "e", postrider.Message{Topic: "orders"})
	form := url.Values{"topic": {"orders"}, "reason": {"r"}, "token": {token}}
	for counted, want := range map[string]int{"1": http.StatusConflict, "": http.StatusBadRequest, "-1": http.StatusBadRequest} {
		form.Set("counted", counted)
		if status, body := r.send(http.MethodPost, "/o/shop/do/discard", form); status != want {
			t.Errorf("counted %q: status %d, want %d\n%s", counted, status, want, body)
		}
	}
	left, err := r.st.Office().Admin.Parked(t.Context(), ops.ParkedQuery{State: store.Dead})
	if err != nil || len(left) != 2 {
		t.Fatalf("%d dead letters are left, want 2: %v", len(left), err)
	}
	form.Set("counted", "2")
	if status, body := r.send(http.MethodPost, "/o/shop/do/discard", form); status != http.StatusOK {
		t.Errorf("status %d\n%s", status, body)
	}
}

// A form of a replay that reaches two processes of one console orders it once, at the same time too:
// whoever has no inbox would apply its messages twice.
func TestReplayFormActsOnceAcrossProcesses(t *testing.T) {
	const path = "/o/shop/do/replay?topic=orders"
	open := func(t *testing.T) (b *book, r *rig, servers []string) {
		t.Helper()
		st := memstore.New(nil)
		b = &book{}
		r = &rig{T: t, st: st}
		for range 2 {
			c := console.New([]console.Outbox{{Name: "shop", Store: st, Office: b.office(st)}}, &console.Options{
				Authenticate: func(*http.Request) (console.User, error) { return ann() }, Secret: []byte("shared"),
			})
			t.Cleanup(c.Close)
			r.serve(c)
			servers = append(servers, r.server.URL)
		}
		return b, r, servers
	}
	post := func(r *rig, server string, form url.Values) int {
		resp, err := r.client.PostForm(server+"/o/shop/do/replay", form)
		if err != nil {
			r.Error(err)
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	t.Run("one after the other", func(t *testing.T) {
		b, r, servers := open(t)
		for range 2 { // another form of the same replay is another replay
			form := r.form(path)
			if first, second := post(r, servers[0], form), post(r, servers[1], form); first != http.StatusOK || second != http.StatusConflict {
				t.Errorf("status %d, then %d, want 200 and 409", first, second)
			}
		}
		if b.ordered != 2 {
			t.Errorf("two forms were sent twice: %d orders, want 2", b.ordered)
		}
	})
	t.Run("at once", func(t *testing.T) {
		b, r, servers := open(t)
		var both sync.WaitGroup
		both.Add(2)
		b.written = func() { both.Done(); both.Wait() } // neither reads before both have written
		form := r.form(path)
		var all sync.WaitGroup
		for _, server := range servers {
			all.Go(func() { post(r, server, form) })
		}
		all.Wait()
		if b.ordered > 1 {
			t.Errorf("a form was sent to both: %d orders", b.ordered)
		}
	})
	t.Run("a journal that fails", func(t *testing.T) {
		b, r, servers := open(t)
		form := r.form(path)
		b.failing = errors.New("the database has gone")
		if status := post(r, servers[0], form); status != http.StatusInternalServerError || b.ordered != 0 {
			t.Errorf("status %d, %d orders", status, b.ordered)
		}
	})
}
