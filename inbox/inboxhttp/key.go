package inboxhttp

import (
	"errors"
	"fmt"
	"strings"
)

// maxKey bounds a key, in bytes.
const maxKey = 255

// parseKey parses the field: a string of structured fields (RFC 9651, 3.3.3), in
// quotes. The bare value that many clients send is accepted as the same key.
// It returns "" if the request has no key.
func parseKey(values []string) (string, error) {
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", fmt.Errorf("the header field %s was sent %d times: send it once", KeyHeader, len(values))
	}
	key, err := parseItem(strings.Trim(values[0], " "))
	switch {
	case err != nil:
		return "", err
	case key == "" || len(key) > maxKey:
		return "", fmt.Errorf("the header field %s must have 1 to %d characters", KeyHeader, maxKey)
	}
	return key, nil
}

var errKey = errors.New("the header field " + KeyHeader + ` must be a string of printable ASCII characters in quotes: "8e03978e-40d5-43dd-bc93-6894a57f9324"`)

func parseItem(v string) (string, error) {
	if !strings.HasPrefix(v, `"`) {
		for _, c := range []byte(v) {
			if c <= ' ' || c >= 0x7f || strings.IndexByte(`",;\`, c) >= 0 {
				return "", errKey
			}
		}
		return v, nil
	}
	var key strings.Builder
	for i := 1; i < len(v); i++ {
		switch c := v[i]; {
		case c == '"':
			// Parameters of the item may follow: they are not part of the key.
			if rest := strings.TrimLeft(v[i+1:], " "); rest != "" && rest[0] != ';' {
				return "", errKey
			}
			return key.String(), nil
		case c == '\\':
			if i++; i == len(v) || v[i] != '"' && v[i] != '\\' {
				return "", errKey
			}
			key.WriteByte(v[i])
		case c < ' ' || c >= 0x7f:
			return "", errKey
		default:
			key.WriteByte(c)
		}
	}
	return "", errKey
}
