package envelope

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"unicode"
)

var errNotEncoded = errors.New("is not percent-encoded, although postrider-encoded names it")

// encodeLines percent-encodes values of dst that do not fit a line of text.
func encodeLines(dst []Header, ascii bool) []Header {
	var names []string
	for i := range dst {
		if h := &dst[i]; !fitsLine(h.Value) || ascii && !isASCII(h.Value) {
			h.Value = []byte(url.PathEscape(string(h.Value)))
			names = append(names, url.QueryEscape(h.Name))
		}
	}
	if names != nil {
		slices.Sort(names) // the headers have no order, but all tries of a message must be equal
		dst = append(dst, Header{Encoded, []byte(strings.Join(names, ","))})
	}
	return dst
}

// fitsLine reports whether a broker's trimming leaves a value unchanged.
func fitsLine(v []byte) bool {
	for i, r := range string(v) {
		if unicode.IsControl(r) || (i == 0 || i == len(v)-1) && r == ' ' {
			return false
		}
	}
	s := string(v)
	return strings.TrimSpace(s) == s
}

func isASCII(v []byte) bool {
	for _, c := range v {
		if c > '~' {
			return false
		}
	}
	return true
}

// decodeLines is the inverse of encodeLines on a copy; it drops the Encoded header. folded
// means that the headers' names have been converted to lower case.
func decodeLines(headers []Header, folded bool, origin string) ([]Header, error) {
	names := ""
	for _, h := range headers {
		if h.Name == Encoded {
			names = string(h.Value)
		}
	}
	if names == "" {
		return headers, nil
	}
	encoded := make(map[string]bool)
	for name := range strings.SplitSeq(names, ",") {
		plain, err := url.QueryUnescape(name)
		if folded {
			plain = strings.ToLower(plain)
		}
		if err == nil {
			encoded[plain] = true
		}
	}
	var first error
	out := make([]Header, 0, len(headers))
	for _, h := range headers {
		if h.Name == Encoded {
			continue
		}
		if encoded[h.Name] {
			v, err := url.PathUnescape(string(h.Value))
			if err != nil && first == nil {
				first = &DecodeError{Header: h.Name, Origin: origin, Err: errNotEncoded}
			} else if err == nil {
				h.Value = []byte(v)
			}
		}
		out = append(out, h)
	}
	return out, first
}
