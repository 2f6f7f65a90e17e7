package interop

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/httpbroker"
	"github.com/postrider/postrider/internal/testserver"
)

const webhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// request is what an endpoint received.
type request struct {
	Secret  string            `json:"secret"`
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"body"`
}

// posted is what a payload looks like at the endpoint.
func posted(t *testing.T, payload []byte) request {
	t.Helper()
	got := request{Secret: webhookSecret, Headers: map[string]string{}}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got.Body, _ = io.ReadAll(r.Body)
		for name := range r.Header {
			got.Headers[strings.ToLower(name)] = r.Header.Get(name)
		}
	}))
	defer server.Close()
	sink, err := httpbroker.NewSink([]httpbroker.Endpoint{{
		Name: "e", Topics: []string{"orders"}, URL: server.URL, Secrets: httpbroker.Static(webhookSecret),
		Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, // and its ports
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	m := postrider.Message{ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: "orders", Type: "order.placed", Payload: payload}
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}}); errs != nil {
		t.Fatal(errs)
	}
	return got
}

// TestWebhooks: the official libraries verify every payload, as far as they take it:
// those that work on text, as that of JavaScript does, take UTF-8 only.
func TestWebhooks(t *testing.T) {
	payloads := map[string]bool{`{"order":17}`: true, `{"city":"Zürich"}`: true, `"\u00ff"`: true, "\"\xff\xfe\"": false}
	t.Run("go", func(t *testing.T) {
		hook, err := standardwebhooks.NewWebhook(webhookSecret)
		if err != nil {
			t.Fatal(err)
		}
		for payload := range payloads {
			r := posted(t, []byte(payload))
			h := http.Header{}
			for name, value := range r.Headers {
				h.Set(name, value)
			}
			if err := hook.Verify(r.Body, h); err != nil {
				t.Errorf("%q: %v", payload, err)
			}
		}
	})
	t.Run("javascript", func(t *testing.T) {
		matrix(t)
		node, libs := testserver.NodeModules(t, "javascript")
		verifier := testserver.Program{Dir: "javascript", Command: []string{node, "webhooks.mjs", libs}}
		for payload, text := range payloads {
			line, err := json.Marshal(posted(t, []byte(payload)))
			if err != nil {
				t.Fatal(err)
			}
			out, err := verifier.Run(t.Context(), string(line)+"\n")
			if verified := strings.TrimSpace(out) == "ok"; err != nil || verified != text {
				t.Errorf("%q: %s, %v; want it verified: %v", payload, out, err, text)
			}
		}
	})
}
