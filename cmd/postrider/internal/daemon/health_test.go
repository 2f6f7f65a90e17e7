package daemon

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/postrider/postrider/relay"
)

// Promises: C
func TestHealthSaysPartsWithoutErrors(t *testing.T) {
	h := relay.Health{Running: true, Alive: true, Down: map[string]string{"store": "dial tcp 10.0.0.7: refused"}}
	srv := httptest.NewServer(healthHandler([]*unit{{health: func() relay.Health { return h }}}, http.NotFoundHandler()))
	defer srv.Close()
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable, "/": http.StatusNotFound} {
		resp, err := http.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		var body bytes.Buffer
		_, _ = body.ReadFrom(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != want || strings.Contains(body.String(), "10.0.0.7") {
			t.Errorf("%s: %d %s, want %d without the error", path, resp.StatusCode, body.String(), want)
		}
	}
}

// TestOutageIsNoLoad: an autoscaler gets the backlog of all relays, and no number while a part is down.
func TestOutageIsNoLoad(t *testing.T) {
	for _, tc := range []struct {
		loads []load
		code  int
		body  string
	}{
		{[]load{{pending: 7, known: true}}, http.StatusOK, `{"pending":7}`},
		{[]load{{pending: 7, known: true}, {pending: 5, known: true}}, http.StatusOK, `{"pending":12}`},
		{[]load{{pending: 7, known: true}, {pending: 9000, known: true, down: true}}, http.StatusServiceUnavailable, `{"pending":0,"reason":"a database or destination is down"}`},
		{[]load{{pending: 7, known: true}, {}}, http.StatusServiceUnavailable, `{"pending":0,"reason":"the backlog is unknown"}`},
	} {
		w := httptest.NewRecorder()
		serveScale(w, tc.loads)
		if got := strings.TrimSpace(w.Body.String()); w.Code != tc.code || got != tc.body {
			t.Errorf("%+v: %d %s, want %d %s", tc.loads, w.Code, got, tc.code, tc.body)
		}
	}
	down := &unit{health: func() relay.Health { return relay.Health{Down: map[string]string{"sink": "refused"}} }}
	srv := httptest.NewServer(healthHandler([]*unit{down}, http.NotFoundHandler()))
	defer srv.Close()
	resp, err := http.Get(srv.URL + "/scale")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("/scale answers %d while the broker is down", resp.StatusCode)
	}
}
