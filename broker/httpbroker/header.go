package httpbroker

import (
	"net/http"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// codec returns the header table for HTTP.
func codec() envelope.Codec {
	return envelope.Codec{Reserved: reserved, Lines: true, ASCII: true, Fold: true, Binding: envelope.BindingHTTP}
}

// reserved reports whether a header name has a meaning for proxies and servers on the
// way, or would let the writer of a message forge a trusted header.
func reserved(name string) bool {
	lower := strings.ToLower(name)
	switch lower {
	case "accept", "accept-charset", "accept-encoding", "accept-language", "accept-ranges", "age", "allow", "alt-svc",
		"authorization", "cache-control", "connection", "content-encoding", "content-language", "content-length",
		"content-location", "content-range", "cookie", "cookie2", "date", "early-data", "expect", "expires",
		"forwarded", "from", "host", "http2-settings", "keep-alive", "max-forwards", "mime-version", "origin", "pragma",
		"range", "referer", "server", "set-cookie", "te", "trailer", "transfer-encoding", "true-client-ip", "upgrade",
		"user-agent", "vary", "via", "warning", "www-authenticate":
		return true
	}
	for _, prefix := range [...]string{
		"access-control-", "cf-", "if-", "proxy-", "sec-", "webhook-", "x-amz-", "x-client-", "x-forwarded", "x-http-method",
		"x-method-override", "x-original-", "x-real-ip", "x-rewrite-",
	} {
		if strings.HasPrefix(lower, prefix) {
			return true
		}
	}
	return false
}

// frame returns the headers of a message's request, except those of a single try, and its
// body. Names are lower-case map keys, so net/http does not find Idempotency-Key, for
// which it would repeat a request by itself: it must not.
func frame(codec envelope.Codec, m *postrider.Message, r *envelope.Route) (http.Header, []byte, error) {
	var w envelope.Wire
	if err := codec.Encode(&w, m, r, 0); err != nil {
		return nil, nil, err
	}
	h := make(http.Header, len(w.Headers)+5)
	for _, one := range w.Headers {
		h[strings.ToLower(one.Name)] = []string{string(one.Value)}
	}
	return h, w.Payload, nil
}

// headers returns the headers of a request that its sender wrote.
func headers(h http.Header) []envelope.Header {
	hs := make([]envelope.Header, 0, len(h))
	for name, values := range h {
		if name = strings.ToLower(name); len(values) > 0 && !reserved(name) {
			hs = append(hs, envelope.Header{Name: name, Value: []byte(strings.Join(values, ", "))})
		}
	}
	return hs
}
