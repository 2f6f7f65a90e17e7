package httpbroker

import (
	"crypto/tls"
	"encoding/base64"
	"net/http"
	"sync"
	"time"
)

func base64Text(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// Limits of what an endpoint may answer, and of a connection's life.
const (
	maxAnswerHeader = 64 << 10
	maxAnswerBody   = 64 << 10 // read so that the connection can be reused; above it, it is closed
	idleConn        = 60 * time.Second
	connAge         = 5 * time.Minute // after it the name is resolved again
)

// client sends requests to one endpoint. It never follows a redirect, never
// repeats a request that may have arrived, and never decompresses an answer.
type client struct {
	p *prepared

	mu        sync.Mutex
	transport *http.Transport
	since     time.Time
}

// current returns the transport, and replaces an old one: the name may point to
// another address than that of old connections.
func (c *client) current() (*http.Transport, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.transport != nil && time.Since(c.since) < connAge {
		return c.transport, nil
	}
	next, err := c.p.transport()
	switch {
	case err == nil:
		if c.transport != nil {
			c.transport.CloseIdleConnections() // connections in use close when they become idle
		}
		c.transport = next
	case c.transport == nil:
		return nil, err
	}
	c.since = time.Now() // on error the old transport stays in use
	return c.transport, nil
}

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
}

func (p *prepared) transport() (*http.Transport, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if p.TLS != nil {
		own, err := p.TLS()
		if err != nil {
			return nil, err
		}
		config = own.Clone()
		config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	}
	t := &http.Transport{
		DialContext: p.dialer().DialContext, TLSClientConfig: config, TLSHandshakeTimeout: p.TLSTimeout,
		ForceAttemptHTTP2: true, DisableCompression: true,
		MaxIdleConns: p.Concurrency, MaxIdleConnsPerHost: p.Concurrency, IdleConnTimeout: idleConn,
		MaxResponseHeaderBytes: maxAnswerHeader,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
	}
	if p.proxy != nil {
		t.Proxy = http.ProxyURL(p.proxy)
	}
	return t, nil
}
