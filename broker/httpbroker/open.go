package httpbroker

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Open returns a sink for one endpoint, which gets every topic, of a URL: see
// [ParseURL]. opts may be nil. It does no I/O but reading credentials: an endpoint that
// cannot be reached is an outage of Deliver. Close ends the sink and its connections.
func Open(rawURL string, opts *SinkOptions) (*Sink, error) {
	t, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	return NewSink([]Endpoint{t.Endpoint}, opts)
}

// headerWait is how long a request's header may take.
const headerWait = 5 * time.Second

// OpenSource listens at the host and port of an http:// URL and receives webhooks there,
// on any path; TLS ends before it. The URL's settings name secrets, or unsigned, and may
// name max-bytes; where URL and opts, which may be nil, both set an option, the URL
// decides. An address that cannot be listened at is an error. Close ends the source and
// its server.
func OpenSource(rawURL string, opts *SourceOptions) (*Source, error) {
	t, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(t.Endpoint.URL)
	if err != nil || at.Scheme != "http" || at.Host == "" {
		return nil, fmt.Errorf("%w: a source listens at http://HOST:PORT", ErrEndpoint)
	}
	o := t.Source
	if opts != nil {
		o = *opts
		if t.Source.Secrets != nil || t.Source.Unsigned {
			o.Secrets, o.Unsigned = t.Source.Secrets, t.Source.Unsigned
		}
		if t.Source.MaxBytes > 0 {
			o.MaxBytes = t.Source.MaxBytes
		}
	}
	s, err := NewSource(&o)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", at.Host) //nolint:noctx // it takes no time
	if err != nil {
		return nil, fmt.Errorf("httpbroker: source: %w", err)
	}
	server := &http.Server{Handler: s, ReadHeaderTimeout: headerWait}
	go func() { _ = server.Serve(l) }() // it ends with Close
	s.close = func() { _ = server.Close() }
	return s, nil
}
