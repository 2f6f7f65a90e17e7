package telemetry

import (
	"bytes"
	"errors"
	"log/slog"
	"net/url"
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
