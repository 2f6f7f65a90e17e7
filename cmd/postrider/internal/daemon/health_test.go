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
