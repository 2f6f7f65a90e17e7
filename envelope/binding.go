package envelope

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// Binding is the encoding of CloudEvents on a kind of broker, by the protocol bindings
// of https://github.com/cloudevents/spec, version 1.0.
type Binding uint8

// The bindings. Redis needs no binding of its own: fields of an entry are like
// headers of a Kafka record.
const (
	BindingFields    Binding = iota // prefix ce_: Redis, memory, and brokers without a binding of their own
	BindingKafka                    // prefix ce_
	BindingHTTP                     // prefix ce-, values percent-encoded, names without case
	BindingNATS                     // the same with ce-datacontenttype
	BindingAMQP                     // prefix cloudEvents_; cloudEvents: is read too
	BindingAMQPColon                // prefix cloudEvents:; cloudEvents_ is read too
	BindingAMQPDash                 // prefix ce-, like HTTP, with unchanged values
)

func (b Binding) prefix() string {
	switch b {
	case BindingHTTP, BindingNATS:
		return "ce-"
	case BindingAMQP:
		return "cloudEvents_"
	case BindingAMQPColon:
		return "cloudEvents:"
	case BindingAMQPDash:
		return "ce-"
	case BindingFields, BindingKafka:
	}
	return "ce_"
}

// attribute returns the name of the attribute that a header carries.
func (b Binding) attribute(header string) (name string, ok bool) {
	switch b {
	case BindingAMQP, BindingAMQPColon:
		const prefix = "cloudEvents"
		if len(header) > len(prefix)+1 && header[:len(prefix)] == prefix && (header[len(prefix)] == '_' || header[len(prefix)] == ':') {
			return header[len(prefix)+1:], true
		}
		return "", false
	case BindingHTTP, BindingNATS:
		if len(header) > 3 && strings.EqualFold(header[:3], "ce-") {
			return strings.ToLower(header[3:]), true
		}
		return "", false
	case BindingFields, BindingKafka, BindingAMQPDash:
	}
	return strings.CutPrefix(header, b.prefix())
}

// isContentType reports whether a header has the content type. The binding of NATS, whose
// clients keep the case of names, ignores the case.
func (b Binding) isContentType(header string) bool {
	return header == ContentType || b == BindingNATS && strings.EqualFold(header, ContentType)
}

// value returns an attribute's value in the encoding of a header.
func (b Binding) value(v string) string {
	if b == BindingHTTP || b == BindingNATS {
		return percent(v)
	}
	return v
}

// percent encodes by section 3.1.3.2 of the HTTP binding: space, the double
// quote, the percent sign and all bytes that are not printable ASCII.
func percent(v string) string {
	const hex = "0123456789ABCDEF"
	n := 0
	for i := range len(v) {
		if mustEncode(v[i]) {
			n++
		}
	}
	if n == 0 {
		return v
	}
	b := make([]byte, 0, len(v)+2*n)
	for i := range len(v) {
		if c := v[i]; mustEncode(c) {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func mustEncode(c byte) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '%' }

var errNotUTF8 = errors.New("is not UTF-8 after percent-decoding")

// original is the inverse of value. By the binding, a value in double quotes is
// unquoted first, a percent sign that begins no encoding is kept, and an
// encoding of invalid UTF-8 is refused.
func (b Binding) original(v string) (string, error) {
	if b != BindingHTTP && b != BindingNATS {
		return v, nil
	}
	if len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
		v = unquote(v[1 : len(v)-1])
	}
	if !strings.Contains(v, "%") {
		return v, nil
	}
	out := make([]byte, 0, len(v))
	for i := 0; i < len(v); i++ {
		if v[i] == '%' && i+2 < len(v) && unhex(v[i+1]) < 16 && unhex(v[i+2]) < 16 {
			out = append(out, unhex(v[i+1])<<4|unhex(v[i+2]))
			i += 2
			continue
		}
		out = append(out, v[i])
	}
	if !utf8.Valid(out) {
		return "", errNotUTF8
	}
	return string(out), nil
}

func unquote(v string) string {
	var b strings.Builder
	for i := 0; i < len(v); i++ {
		if v[i] == '\\' && i+1 < len(v) {
			i++
		}
		b.WriteByte(v[i])
	}
	return b.String()
}

func unhex(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}
