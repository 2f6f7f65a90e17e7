package natsbroker

import "strings"

const upperHex = "0123456789ABCDEF"

// Subject returns the subject of a topic: prefix and topic. Bytes that a subject
// cannot contain are percent-encoded: control characters, space, *, >,
// %, a $ at the beginning, and a dot that would leave a token empty. Two topics
// never have the same subject.
func Subject(prefix, topic string) string {
	clean := true
	for i := range len(topic) {
		if mustEscape(topic, i) {
			clean = false
			break
		}
	}
	if clean {
		return prefix + topic
	}
	var b strings.Builder
	b.WriteString(prefix)
	for i := range len(topic) {
		c := topic[i]
		if mustEscape(topic, i) {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

func mustEscape(s string, i int) bool {
	switch c := s[i]; {
	case c <= ' ', c == 0x7f, c == '*', c == '>', c == '%':
		return true
	case c == '$':
		return i == 0
	case c == '.':
		return i == 0 || i == len(s)-1 || s[i-1] == '.'
	}
	return false
}
