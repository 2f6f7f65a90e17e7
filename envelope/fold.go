package envelope

import "strings"

// foldName makes a name acceptable for brokers whose names are tokens without case. The
// part behind [EscapePrefix] is percent-encoded.
func foldName(name string) string { return escapeName(name, foldedByte) }

// tokenName makes a name acceptable for brokers whose names are tokens with case.
func tokenName(name string) string { return escapeName(name, tokenByte) }

func escapeName(name string, fits func(byte) bool) string {
	rest, escaped := strings.CutPrefix(name, EscapePrefix)
	if !escaped && allBytes(name, fits) {
		return name
	}
	const hex = "0123456789abcdef"
	b := []byte(EscapePrefix)
	for i := range len(rest) {
		if c := rest[i]; fits(c) && c != '%' {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}

func unfoldName(rest string) string {
	if !strings.Contains(rest, "%") {
		return rest
	}
	b := make([]byte, 0, len(rest))
	for i := 0; i < len(rest); i++ {
		if rest[i] == '%' && i+2 < len(rest) && unhex(rest[i+1]) < 16 && unhex(rest[i+2]) < 16 {
			b = append(b, unhex(rest[i+1])<<4|unhex(rest[i+2]))
			i += 2
			continue
		}
		b = append(b, rest[i])
	}
	return string(b)
}

func allBytes(name string, fits func(byte) bool) bool {
	for i := range len(name) {
		if !fits(name[i]) {
			return false
		}
	}
	return true
}

// foldedByte reports whether c may be in a token of RFC 9110 and is neither a capital nor
// the percent sign.
func foldedByte(c byte) bool { return tokenByte(c) && (c < 'A' || c > 'Z') && c != '%' }

// tokenByte reports whether c may be in a token of RFC 9110, section 5.6.2.
func tokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// foldNames returns the headers with names in lower case.
func foldNames(headers []Header) []Header {
	for i := range headers {
		if low := strings.ToLower(headers[i].Name); low != headers[i].Name {
			out := make([]Header, len(headers))
			for j, h := range headers {
				out[j] = Header{strings.ToLower(h.Name), h.Value}
			}
			return out
		}
	}
	return headers
}
