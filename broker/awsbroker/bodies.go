package awsbroker

import (
	"io"
	"net/http"
)

// bodies sends requests whose bodies have Read and Close only. The WriteTo of the SDK's
// bodies returns io.EOF after Close, and the SDK closes a body as soon as the response
// begins. net/http may ask WriteTo for what is left of the body just after that: it takes
// the error for one of the connection, closes it, and the response is lost.
type bodies struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bodies) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.Body != http.NoBody {
		r = r.WithContext(r.Context()) // a RoundTripper may not change its request
		r.Body = struct {
			io.Reader
			io.Closer
		}{r.Body, r.Body}
	}
	return b.RoundTripper.RoundTrip(r)
}
