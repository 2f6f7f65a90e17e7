package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
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
