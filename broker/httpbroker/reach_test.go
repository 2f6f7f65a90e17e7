package httpbroker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
)

// breaking is a connection that accepts no bytes once it is broken.
type breaking struct {
	net.Conn
	broken *atomic.Bool
}

func (c breaking) Write(p []byte) (int, error) {
	if c.broken.Load() {
		return 0, errors.New("broken")
	}
	return c.Conn.Write(p)
}

// TestASecondConnectionThatIsNotMade: if a connection accepted no byte of a request, and no
// other connection can be made, nothing was sent.
func TestASecondConnectionThatIsNotMade(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	var broken atomic.Bool
	dials := 0
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials++; dials > 1 {
			return nil, errors.New("the handshake is broken off")
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return breaking{conn, &broken}, err
	}}
	defer transport.CloseIdleConnections()
	post := func() (r reach, err error) {
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), r.trace()), http.MethodPost, server.URL, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		return r, err
	}
	if r, err := post(); err != nil || !r.asked || !r.got {
		t.Fatalf("%+v, %v", r, err)
	}
	broken.Store(true)
	if r, err := post(); err == nil || !r.asked || r.got || dials != 2 {
		t.Errorf("%+v after %d connections, %v: it got none", r, dials, err)
	}
}
