package httpbroker_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/postrider/postrider/broker/httpbroker"
)

// TestPing: an endpoint that nobody listens at is found without a request; one of
// several that answers is enough, and one that is stopped is not asked.
func TestPing(t *testing.T) {
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer server.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it takes no time
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
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
