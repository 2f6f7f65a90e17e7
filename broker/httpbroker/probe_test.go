package httpbroker_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/postrider/postrider/broker/httpbroker"
)

// TestPing: an endpoint without a listener is detected without a request. One answering
// endpoint of several is enough, and a stopped one is not tried.
func TestPing(t *testing.T) {
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer server.Close()
	const nobody = "http://127.0.0.1:1"
	named := func(name, url string) httpbroker.Endpoint {
		e := endpoint(url)
		e.Name = name
		return e
	}
	alive, away := named("alive", server.URL), named("away", nobody)
	if err := newSink(t, nil, away).Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "reach endpoint away: ") {
		t.Errorf("nobody listens: %v", err)
	}
	both := newSink(t, nil, away, alive)
	if err := both.Ping(t.Context()); err != nil {
		t.Errorf("one of two listens: %v", err)
	}
	both.Stop([]string{"alive"})
	if err := both.Ping(t.Context()); err == nil {
		t.Error("the one that listens is stopped, and was asked")
	}
	both.Stop([]string{"alive", "away"})
	if err := both.Ping(t.Context()); err != nil {
		t.Errorf("both are stopped: %v", err)
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}
