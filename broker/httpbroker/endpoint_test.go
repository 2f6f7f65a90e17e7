package httpbroker_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider/broker/httpbroker"
)

func TestCredentials(t *testing.T) {
	heads := make(chan http.Header, 10)
	e := serve(t, "t", func(_ http.ResponseWriter, r *http.Request) { heads <- r.Header })
	e.URL = strings.Replace(e.URL, "://", "://user:geheim@", 1)
	s := newSink(t, nil, e)
	if e := deliver(t, s, messages("t", 0, 1)...)[0]; e != nil {
		t.Fatal(e)
	}
	if got := (<-heads).Get("Authorization"); got != "Basic dXNlcjpnZWhlaW0=" {
		t.Errorf("authorization %q", got)
	}
	e.URL = strings.Replace(e.URL, "127.0.0.1", "localhost", 1) // a name, whose address is known only after resolution
	e.Name, e.Allow = "", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	if err := s.SetEndpoints([]httpbroker.Endpoint{e}); err != nil {
		t.Fatal(err)
	}
	err := deliver(t, s, messages("t", 0, 1)...)[0]
	if err == nil || err.Code != "ADDRESS_REFUSED" || strings.Contains(err.Error(), "geheim") {
		t.Errorf("error %v", err)
	}
	for url, why := range map[string]string{
		"https://user:geheim@%zz": "", "geheim": "", "ftp://geheim@h": "", "https://h:geheim": "", "http://geheim:x@example.com/": "insecure",
	} {
		_, err := httpbroker.NewSink([]httpbroker.Endpoint{{URL: url, Unsigned: true}}, nil)
		if !errors.Is(err, httpbroker.ErrEndpoint) || strings.Contains(err.Error(), "geheim") || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestRotation: during a rotation requests carry both signatures.
func TestRotation(t *testing.T) {
	heads := make(chan http.Header, 100)
	text := atomic.Pointer[string]{}
	first, both := vectorSecret, vectorSecret+"\n"+secret
	text.Store(&first)
	e := serve(t, "t", func(_ http.ResponseWriter, r *http.Request) { heads <- r.Header })
	e.Secrets = func(context.Context) (string, error) { return *text.Load(), nil }
	s := newSink(t, nil, e)
	signatures := func() int {
		msgs := messages("t", 0, 1)
		if e := deliver(t, s, msgs...)[0]; e != nil {
			t.Fatal(e)
		}
		h := <-heads
		for _, by := range strings.Fields(*text.Load()) {
			err := httpbroker.Verify(secrets(t, by), msgs[0].ID, h.Get("webhook-timestamp"), h.Get("webhook-signature"), msgs[0].Payload, time.Now(), time.Minute)
			if err == nil {
				break
			}
			t.Error(err)
		}
		return len(strings.Fields(h.Get("webhook-signature")))
	}
	if n := signatures(); n != 1 {
		t.Errorf("%d signatures", n)
	}
	text.Store(&both)
	for end := time.Now().Add(time.Minute); signatures() != 2; {
		if time.Now().After(end) {
			t.Fatal("the second secret is not used")
		}
	}
	broken := "whsec_nonsense"
	text.Store(&broken)
	if *text.Load() = both; signatures() != 2 {
		t.Error("a secret that cannot be read stops requests")
	}
}

func TestSettings(t *testing.T) {
	ok := func() httpbroker.Endpoint {
		return httpbroker.Endpoint{URL: "https://h", Secrets: httpbroker.Static(secret)}
	}
	for why, change := range map[string]func(*httpbroker.Endpoint){
		"confirm with unsigned=true": func(e *httpbroker.Endpoint) { e.Secrets = nil },
		"choose one":                 func(e *httpbroker.Endpoint) { e.Unsigned = true },
		"whsec_":                     func(e *httpbroker.Endpoint) { e.Secrets = httpbroker.Static("geheim") },
		"negative":                   func(e *httpbroker.Endpoint) { e.Concurrency = -1 },
		"no such file":               func(e *httpbroker.Endpoint) { e.Secrets = httpbroker.File("/nowhere/geheim") },
		"header value":               func(e *httpbroker.Endpoint) { e.Authorization = httpbroker.Static("a\r\nb") },
		"no authority": func(e *httpbroker.Endpoint) {
			e.TLS = func() (*tls.Config, error) { return nil, errors.New("no authority") }
		},
		"write http://HOST:PORT or":  func(e *httpbroker.Endpoint) { e.Proxy = "nowhere" },
		"write http://HOST:PORT or ": func(e *httpbroker.Endpoint) { e.Proxy = "socks5://10.0.0.1:1080" },
		"ports=8443, or allow":       func(e *httpbroker.Endpoint) { e.URL = "https://h:8443" },
		"the port is invalid":        func(e *httpbroker.Endpoint) { e.URL = "https://h:70000" },
		"10.1.2.3:443 is not a public address: if the endpoint belongs there, allow it (allow=10.1.2.3": func(e *httpbroker.Endpoint) { e.URL = "https://10.1.2.3/in" },
		"[fd00::1]:443 is not":   func(e *httpbroker.Endpoint) { e.URL = "https://[fd00::1]/in" },
		"93.184.216.34:25 is ne": func(e *httpbroker.Endpoint) { e.URL = "https://93.184.216.34:25/in" },
		"10.1.2.3:3128 is not":   func(e *httpbroker.Endpoint) { e.Proxy = "http://10.1.2.3:3128" },
	} {
		e := ok()
		change(&e)
		if _, err := httpbroker.NewSink([]httpbroker.Endpoint{e}, nil); !errors.Is(err, httpbroker.ErrEndpoint) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
	for what, change := range map[string]func(*httpbroker.Endpoint){
		"another port":           func(e *httpbroker.Endpoint) { e.URL, e.Ports = "https://h:8443", []uint16{8443} },
		"a name that is allowed": func(e *httpbroker.Endpoint) { e.URL, e.Allow = "https://h:8443", loopback() },
		"an address that is":     func(e *httpbroker.Endpoint) { e.URL, e.Allow = "https://[::ffff:127.0.0.1]:8443", loopback() },
		"behind a proxy that may": func(e *httpbroker.Endpoint) {
			e.URL, e.Proxy, e.Allow = "https://10.1.2.3:8443", "http://127.0.0.1:3128", loopback()
		},
	} {
		e := ok()
		change(&e)
		if _, err := httpbroker.NewSink([]httpbroker.Endpoint{e}, nil); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := httpbroker.NewSink([]httpbroker.Endpoint{ok(), ok()}, nil); err == nil {
		t.Error("two endpoints of one name are taken")
	}
	if _, err := httpbroker.NewSink(nil, nil); err == nil {
		t.Error("no endpoint is taken")
	}
}
