package awsbroker_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/postrider/postrider/broker/awsbroker"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestResponseBeforeTheEndOfTheRequest: net/http looks for the rest of a body that the SDK
// has closed, and finds its end and no error. An error there costs the response.
func TestResponseBeforeTheEndOfTheRequest(t *testing.T) {
	t.Parallel()
	request := func() *http.Request {
		r, err := smithyhttp.NewStackRequest().(*smithyhttp.Request).SetStream(bytes.NewReader([]byte("body")))
		must(t, err)
		r.Method, r.URL.Scheme, r.URL.Host = http.MethodPost, "http", "localhost"
		return r.Build(t.Context())
	}
	rest := func(of *http.Request) error { // as net/http does, after the SDK
		must(t, of.Body.Close())
		_, err := io.Copy(io.Discard, of.Body)
		return err
	}
	if err := rest(request()); err != io.EOF { //nolint:errorlint // io.Copy never returns it otherwise
		t.Errorf("the SDK's own body ends with %v: bodies.go is needed no more", err)
	}
	in := request()
	before := in.Body
	_, err := awsbroker.Bodies(roundTrip(func(out *http.Request) (*http.Response, error) {
		text, err := io.ReadAll(io.LimitReader(out.Body, out.ContentLength))
		if must(t, err); string(text) != "body" {
			t.Errorf("sent %q", text)
		}
		return nil, rest(out)
	})).RoundTrip(in)
	if err != nil {
		t.Errorf("the rest of a closed body is an error: %v", err)
	}
	if in.Body != before {
		t.Error("the caller's request was changed")
	}
}
