package httpbroker_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/httpbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/golden"
)

// TestWireIsGolden: an independent server sees the requests of the golden files, byte for
// byte.
func TestWireIsGolden(t *testing.T) {
	for _, f := range envelope.Formats() {
		t.Run(f.String(), func(t *testing.T) {
			texts := make(chan string, 10)
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				payload, _ := io.ReadAll(r.Body)
				h := r.Header
				err := httpbroker.Verify(secrets(t, secret), golden.ID, h.Get("webhook-timestamp"), h.Get("webhook-signature"), payload, time.Now(), time.Hour)
				if err != nil || h.Get("webhook-id") != golden.ID {
					t.Errorf("webhook-id %q: %v", h.Get("webhook-id"), err)
				}
				var hs []envelope.Header
				for name, values := range h {
					name = strings.ToLower(name) // HTTP compares them so
					if strings.HasPrefix(name, "webhook-") || slices.Contains([]string{"user-agent", "content-length", "accept-encoding"}, name) {
						continue
					}
					hs = append(hs, envelope.Header{Name: name, Value: []byte(strings.Join(values, ", "))})
				}
				texts <- golden.Text(hs, payload)
			}))
			defer server.Close()
			sink := newSink(t, &httpbroker.SinkOptions{Route: golden.Router("t", f), Patience: 10 * time.Second}, endpoint(server.URL))
			var all []string
			for _, m := range golden.Messages() {
				if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}}); errs != nil {
					t.Fatal(errs)
				}
				all = append(all, <-texts)
			}
			if err := golden.Compare("http", f, all...); err != nil {
				t.Error(err)
			}
		})
	}
}
