// Package asciijson encodes headers for brokers whose attributes carry ASCII only, or are cut
// between any two bytes.
package asciijson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf16"
)

// Of returns headers as a JSON object in printable ASCII, with the names in order.
// Bytes that are not UTF-8 become U+FFFD.
func Of(headers map[string]string) string {
	var raw bytes.Buffer
	enc := json.NewEncoder(&raw)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(headers); err != nil { // a map of strings always encodes
		return "{}"
	}
	var b strings.Builder
	for _, r := range strings.TrimSuffix(raw.String(), "\n") {
		switch {
		case r < 0x7f:
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, "\\u%04x\\u%04x", high, low)
		default:
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return b.String()
}
