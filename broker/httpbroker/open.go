package httpbroker

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Open returns a sink for the single endpoint of a URL, which gets every topic: see
// [ParseURL]. opts may be nil. It does no I/O except reading credentials: an unreachable
// endpoint is an outage of Deliver. Close ends the sink and its connections.
func Open(rawURL string, opts *SinkOptions) (*Sink, error) {
	t, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	return NewSink([]Endpoint{t.Endpoint}, opts)
}

// headerWait bounds the time for reading a request's header.
const headerWait = 5 * time.Second

// OpenSource listens on the host and port of an http:// URL and receives webhooks there,
// on any path; a proxy in front must terminate TLS. The URL's settings have secrets or
// unsigned, and possibly max-message-bytes. Where URL and opts, which may be nil, both set an
// option, the URL decides. A failure to listen is an error. Close ends the source and
// its server.
func OpenSource(rawURL string, opts *SourceOptions) (*Source, error) {
	t, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(t.Endpoint.URL)
	if err != nil || at.Scheme != "http" || at.Host == "" {
		return nil, fmt.Errorf("%w: a source needs a URL such as http://HOST:PORT to listen on", ErrEndpoint)
	}
	o := t.Source
	if opts != nil {
		o = *opts
		if t.Source.Secrets != nil || t.Source.Unsigned {
			o.Secrets, o.Unsigned = t.Source.Secrets, t.Source.Unsigned
		}
		if t.Source.MaxMessageBytes > 0 {
			o.MaxMessageBytes = t.Source.MaxMessageBytes
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
