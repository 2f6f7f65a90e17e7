package telemetry

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
)

// TestHealth: an outage is logged once for each reason, its end once, and no address.
func TestHealth(t *testing.T) {
	var log bytes.Buffer
	h := health{log: slog.New(slog.NewTextHandler(&log, nil)), signal: "traces"}
	broken := func(port string) error {
		return &url.Error{Op: "Post", URL: "http://c/?token=s3cret", Err: errors.New("read tcp 127.0.0.1:" + port + ": connection reset")}
	}
	for _, err := range []error{nil, broken("53412"), broken("53413"), broken("9"), errors.New("401 Unauthorized"), nil, nil, broken("1")} {
		if err := h.tell(err); err != nil {
			t.Errorf("the SDK logs %v once more", err)
		}
	}
	text := log.String()
	for want, n := range map[string]int{"telemetry export failed": 3, "401 Unauthorized": 1, "telemetry export recovered": 1, "failed_exports=4": 1, "s3cret": 0} {
		if got := strings.Count(text, want); got != n {
			t.Errorf("%q is logged %d times, want %d:\n%s", want, got, n, text)
		}
	}
}

// TestRefusedExport: a collector that refuses an export is logged with its host and its status,
// without the path of the endpoint, which may be a key, and with the beginning of its answer.
//
// Promises: C
func TestRefusedExport(t *testing.T) {
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no such tenant at https://c.example.com/s3cret "+strings.Repeat("x", 100_000), http.StatusUnauthorized)
	}))
	defer collector.Close()
	for _, name := range []string{"TRACES", "METRICS"} {
		t.Setenv("OTEL_EXPORTER_OTLP_"+name+"_ENDPOINT", collector.URL+"/s3cret/v1/x")
	}
	var log bytes.Buffer
	e, err := Start(Source{LookupEnv: os.LookupEnv, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	_, span := e.Spans.Tracer("test").Start(t.Context(), "send")
	span.End()
	e.Stop(true)
	text := log.String()
	if strings.Contains(text, "s3cret") || len(text) > 5000 {
		t.Errorf("the path of the endpoint, or too much of an answer, is logged (%d bytes): %.400s", len(text), text)
	}
	if host := strings.TrimPrefix(collector.URL, "http://"); strings.Count(text, host) != 2 || strings.Count(text, "401 Unauthorized") != 2 {
		t.Errorf("host and status of two exports are not logged: %.1000s", text)
	}
}
