package httpbroker_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/httpbroker"
	"github.com/postrider/postrider/internal/faultproxy"
)

// TestConnectionsAreUsedAgain: one connection serves a key's messages one after the other,
// and many keys use as many connections as concurrent requests.
func TestConnectionsAreUsedAgain(t *testing.T) {
	var made atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"ok":true}`)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			made.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	e := endpoint(server.URL)
	e.Concurrency = 10
	s := newSink(t, nil, e)
	one := messages("t", 0, 200)
	for i := range one {
		one[i].Key = "k"
	}
	for i, e := range deliver(t, s, one...) {
		if e != nil {
			t.Fatal(i, e)
		}
	}
	if n := made.Load(); n != 1 {
		t.Errorf("%d connections for 200 messages of one key", n)
	}
	for i, e := range deliver(t, s, messages("t", 1000, 500)...) {
		if e != nil {
			t.Fatal(i, e)
		}
	}
	if n := made.Load(); n > 20 {
		t.Errorf("%d connections for 500 keys, 10 at once", n)
	}
}

func TestTLS(t *testing.T) {
	proto := make(chan int, 10)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { proto <- r.ProtoMajor }))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = discard()
	server.StartTLS()
	defer server.Close()
	e := endpoint(server.URL)
	s := newSink(t, nil, e)
	if e := deliver(t, s, messages("t", 0, 1)...)[0]; e == nil || e.Class != broker.ClassOutage || e.Code != "TLS" {
		t.Errorf("a certificate of nobody: %v", e)
	}
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	e.TLS = func() (*tls.Config, error) {
		return &tls.Config{RootCAs: roots, ServerName: "example.com"}, nil // the name in httptest's certificate
	}
	if err := s.SetEndpoints([]httpbroker.Endpoint{e}); err != nil {
		t.Fatal(err)
	}
	if e := deliver(t, s, messages("t", 0, 1)...)[0]; e != nil {
		t.Fatal(e)
	}
	if n := <-proto; n != 2 {
		t.Errorf("HTTP/%d over TLS", n)
	}
}

// behind starts an endpoint with TLS whose connections serve one request each, and
// a proxy in front of it.
func behind(t *testing.T) (httpbroker.Endpoint, *faultproxy.Proxy) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }))
	server.Config.ErrorLog = discard()
	server.StartTLS()
	t.Cleanup(server.Close)
	proxy, err := faultproxy.New(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	e := endpoint("https://" + proxy.Addr())
	e.Name, e.Topics, e.Timeout = "bad", []string{"bad"}, time.Minute
	e.TLS = func() (*tls.Config, error) { return &tls.Config{RootCAs: roots, ServerName: "example.com"}, nil }
	return e, proxy
}

// TestNoConnectionIsNoMessagesFault: without a connection the failure is the endpoint's
// outage, never the message's, whatever the endpoint has accepted meanwhile.
func TestNoConnectionIsNoMessagesFault(t *testing.T) {
	e, proxy := behind(t)
	e.TLSTimeout = 300 * time.Millisecond
	s := newSink(t, &httpbroker.SinkOptions{Patience: 30 * time.Second}, good(t), e)
	unreachable := func(why string) {
		t.Helper()
		if e := deliver(t, s, messages("bad", 0, 1)...)[0]; e == nil || e.Class != broker.ClassOutage || e.Code != "UNREACHABLE" {
			t.Errorf("%s: %v", why, e)
		}
	}
	accepted := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; {
			e := deliver(t, s, messages("bad", 1, 1)...)[0]
			if e == nil {
				return
			}
			if e.Class != broker.ClassOutage || time.Now().After(end) { // a slow machine may not make the connection in time
				t.Fatal(e)
			}
		}
	}
	proxy.Freeze()
	unreachable("the handshake hangs")
	proxy.Restore()
	accepted()
	proxy.Freeze()
	unreachable("it hangs again")
	proxy.Restore()
	accepted()
	proxy.Cut(10)
	unreachable("the handshake is cut")
	proxy.Restore()
	accepted()
	proxy.Cut(10)
	unreachable("it is cut again")
}

// TestProxyRefuses: a proxy's refusal to connect is not the endpoint's answer, and its text is not shown.
func TestProxyRefuses(t *testing.T) {
	asked := make(chan string, 10)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.Host
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = conn.Write([]byte("HTTP/1.1 407 geheim\r\n\r\n"))
			conn.Close()
		}
	}))
	t.Cleanup(proxy.Close)
	e := endpoint("https://hooks.example.com/geheim")
	e.Proxy = strings.Replace(proxy.URL, "://", "://user:geheim@", 1)
	s := newSink(t, nil, e)
	if e := deliver(t, s, messages("t", 0, 1)...)[0]; e == nil || e.Class != broker.ClassOutage || e.Code != "UNREACHABLE" || strings.Contains(e.Error(), "geheim") {
		t.Error(e)
	}
	if got := <-asked; got != "CONNECT hooks.example.com:443" {
		t.Errorf("the proxy was asked for %s", got)
	}
}
