package console_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// A role on one outbox gives nothing on another, whatever form is sent.
func TestRoleOfAnotherOutbox(t *testing.T) {
	st := memstore.New(nil)
	r := rigOf(t, st, st.Office(), func() (console.User, error) {
		return console.User{Name: "ann", Roles: map[string]console.Role{"shop": console.Operator, "stock": console.Viewer}}, nil
	})
	r.die("E1", "e", postrider.Message{Topic: "orders", Key: "k", Payload: []byte("secret")})
	form := r.form("/o/shop/do/pause?key=k")
	for path, want := range map[string]int{
		"/o/stock/do/pause": http.StatusForbidden, "/o/stock@audit/do/pause": http.StatusNotFound,
		"/o/STOCK/do/pause": http.StatusNotFound, "/o/shop%2f..%2fstock/do/pause": http.StatusNotFound, "/o/shop/payload": http.StatusForbidden, "/o/stock/payload": http.StatusForbidden,
	} {
		form.Set("seq", "1")
		status, body := r.send(http.MethodPost, path, form)
		if status != want || strings.Contains(body, "secret") {
			t.Errorf("%s: status %d, want %d\n%s", path, status, want, body)
		}
	}
	if s, err := st.Office().Admin.Status(t.Context()); err != nil || len(s.Holds) > 0 {
		t.Errorf("holds %+v, error %v, want none", s.Holds, err)
	}
}

// A form that was opened before its user signed out acts no more, whoever sends it.
func TestFormOfWhoSignedOut(t *testing.T) {
	var user atomic.Pointer[console.User]
	user.Store(&console.User{Name: "ann", Role: console.Admin})
	st := memstore.New(nil)
	r := rigOf(t, st, st.Office(), func() (console.User, error) {
		if u := user.Load(); u != nil {
			return *u, nil
		}
		return console.User{}, errors.New("the token is unknown")
	})
	form := r.form("/o/shop/do/pause?key=k")
	for what, now := range map[string]*console.User{"nobody": nil, "another": {Name: "bob", Role: console.Admin}, "demoted": {Name: "ann", Role: console.Viewer}} {
		user.Store(now)
		if status, body := r.send(http.MethodPost, "/o/shop/do/pause", form); status < http.StatusBadRequest || status >= http.StatusInternalServerError {
			t.Errorf("%s: status %d\n%s", what, status, body)
		}
	}
	if s, err := st.Office().Admin.Status(t.Context()); err != nil || len(s.Holds) > 0 {
		t.Errorf("holds %+v, error %v, want none", s.Holds, err)
	}
}

// One form that is sent by many at once acts once.
func TestFormActsOnceAtOnce(t *testing.T) {
	r := newRig(t, "", nil)
	form := r.form("/o/shop/do/pause?key=k")
	var done, refused atomic.Int64
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			switch status, body := r.send(http.MethodPost, "/o/shop/do/pause", form); status {
			case http.StatusOK:
				done.Add(1)
			case http.StatusConflict:
				refused.Add(1)
			default:
				t.Errorf("status %d\n%s", status, body)
			}
		})
	}
	all.Wait()
	if done.Load() != 1 || refused.Load() != 15 {
		t.Errorf("%d acted, %d were refused, want 1 and 15", done.Load(), refused.Load())
	}
}

// A key of any bytes leads from the list to its page and to its acts: as long as keys may be, not
// UTF-8, from right to left, with what paths and queries use.
func TestOddKeysKeepTheirBytes(t *testing.T) {
	r := newRig(t, "", nil)
	for i, key := range []string{strings.Repeat("k", 512), strings.Repeat("ключ", 64), "مفتاح-١", "a/../b?c=d&e#f%2f+g h", "é\u0301", "..", "\u202eabc"} {
		if !utf8.ValidString(key) {
			t.Fatalf("key %d", i)
		}
		r.die("E1", "e", postrider.Message{Topic: "orders", Key: key})
		for _, path := range []string{"dead?key=", "do/retry?key=", "do/pause?key="} {
			if status, body := r.get("/o/shop/" + path + url.QueryEscape(key)); status != http.StatusOK || strings.Contains(body, "None found.") {
				t.Errorf("%s%.40q: status %d\n%s", path, key, status, body)
			}
		}
		form := r.form("/o/shop/do/pause?key=" + url.QueryEscape(key))
		if got := form.Get("key"); got != key && !strings.ContainsAny(key, "&+#") { // the form has it escaped for HTML
			t.Errorf("the form has the key %q, want %q", got, key)
		}
	}
}

// manyPipes is an office with many pipes.
type manyPipes struct {
	pipes
	n int
}

func (p manyPipes) Pipes(context.Context) ([]ops.Pipe, error) {
	all := make([]ops.Pipe, p.n)
	for i := range all {
		all[i] = ops.Pipe{Name: fmt.Sprint("pipe-", i)}
	}
	all[0].Name = "main"
	return all, nil
}

// Ten thousand pipes are listed on the page of pipes alone.
func TestManyPipes(t *testing.T) {
	st := memstore.New(nil)
	office := st.Office()
	office.Pipes = manyPipes{n: 10_000}
	r := rigOf(t, st, office, ann)
	for _, page := range []string{"", "lanes", "dead", "keys", "pipes"} {
		status, body := r.get("/o/shop/" + page)
		t.Logf("page %q: %d bytes", page, len(body))
		if status != http.StatusOK || page != "pipes" && len(body) > 200_000 || len(body) > 1<<20 || page == "pipes" && !strings.Contains(body, "The first 500 of 10") {
			t.Errorf("page %q: status %d, %d bytes", page, status, len(body))
		}
	}
}
