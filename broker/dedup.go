package broker

import (
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// DedupID returns the id that a message has for a broker that drops repeated ids,
// "" for a message without an id. Two results are equal only when pipe,
// destination, message id and replay generation are equal: a second pipe, a second
// route or a replay is never taken for a repetition. The result is printable ASCII.
func DedupID(pipe, destination string, m *postrider.Message) string {
	if m.ID == "" {
		return ""
	}
	id := escapePart(pipe) + "/" + escapePart(destination) + "/" + escapePart(m.ID)
	if g := m.Headers[envelope.Generation]; g != "" {
		id += "/" + escapePart(g)
	}
	return id
}

// escapePart percent-encodes everything that could end a part of a DedupID or that
// is not printable ASCII.
func escapePart(s string) string {
	const hex = "0123456789ABCDEF"
	plain := func(c byte) bool { return c > ' ' && c < 0x7f && c != '%' && c != '/' }
	n := 0
	for n < len(s) && plain(s[n]) {
		n++
	}
	if n == len(s) {
		return s
	}
	var b strings.Builder
	b.WriteString(s[:n])
	for ; n < len(s); n++ {
		c := s[n]
		if plain(c) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String()
}
