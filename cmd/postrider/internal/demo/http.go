package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// httpBroker is the endpoint of the demo: it hands each webhook to the warehouse and
// writes down what the warehouse has accepted.
type httpBroker struct {
	server *http.Server

	mu  sync.Mutex
	all []copyAt
}

// openHTTP listens where the broker's URL points, and gives relay and
// warehouse a secret to sign and to verify with.
func openHTTP(ctx context.Context, d *run) (*httpBroker, error) {
	u, err := url.Parse(d.set.Broker)
	if err != nil || u.Port() == "" || u.Fragment != "" {
		return nil, exit.Usagef("broker %s cannot be used: the demo listens there itself: write http://127.0.0.1:PORT/PATH", redact.Place(d.set.Broker))
	}
	file, key := filepath.Join(d.dir, "webhook.secret"), make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	if err := os.WriteFile(file, []byte("whsec_"+base64.StdEncoding.EncodeToString(key)+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", u.Host)
	if err != nil {
		return nil, exit.Withf(exit.Unreachable, "the demo cannot listen on %s: %w", u.Host, err)
	}
	house, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("demo: %w", err)
	}
	to := &url.URL{Scheme: "http", Host: house.Addr().String()}
	_ = house.Close() // the warehouse listens there
	settings := "#secret-file=" + url.QueryEscape(file) + "&allow=127.0.0.1"
	d.set.Broker, d.houseBroker = d.set.Broker+settings, to.String()+settings
	b := &httpBroker{}
	b.server = &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: b.handler(to)}
	go func() { _ = b.server.Serve(l) }() // it ends with close
	return b, nil
}

func (b *httpBroker) handler(to *url.URL) http.Handler {
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		payload, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "the body broke off", http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(payload))
		mine := *proxy
		mine.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
		mine.ModifyResponse = func(resp *http.Response) error {
			if resp.StatusCode/100 == 2 {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.all = append(b.all, decodeCopy(payload, time.Now()))
			}
			return nil
		}
		mine.ServeHTTP(w, r)
	})
}

func (b *httpBroker) published(context.Context) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.all), nil
}

func (b *httpBroker) copies(context.Context) ([]copyAt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.all), nil
}

func (b *httpBroker) close() { _ = b.server.Close() }
