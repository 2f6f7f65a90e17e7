package route

import (
	"strings"

	"github.com/postrider/postrider"
)

// Match selects the messages of a rule: those that meet all of its conditions. An empty
// Match selects every message.
type Match struct {
	Topic string // a pattern; "" for every topic
	Type  string // a pattern; "" for every type, the empty one included
	// Headers lists headers that the message must have, by name, with a pattern for the
	// value; "*" for any value.
	Headers map[string]string
}

func (w *Match) matches(m *postrider.Message) bool {
	if w.Topic != "" && !glob(w.Topic, m.Topic) || w.Type != "" && !glob(w.Type, m.Type) {
		return false
	}
	for name, pattern := range w.Headers {
		if value, ok := m.Headers[name]; !ok || !glob(pattern, value) {
			return false
		}
	}
	return true
}

// covers reports whether w matches every message that o matches. true is
// always right; false may be wrong.
func (w *Match) covers(o *Match) bool {
	if !covers(w.Topic, o.Topic) || !covers(w.Type, o.Type) {
		return false
	}
	for name, pattern := range w.Headers {
		if other, ok := o.Headers[name]; !ok || !glob(pattern, other) {
			return false
		}
	}
	return true
}

// covers reports whether pattern matches other as a text, star for star, and so matches
// all that other matches.
func covers(pattern, other string) bool {
	if other == "" {
		other = "*"
	}
	return pattern == "" || glob(pattern, other)
}

// glob reports whether s matches pattern, in which * matches any text.
func glob(pattern, s string) bool {
	first, rest, more := strings.Cut(pattern, "*")
	if !more {
		return s == pattern
	}
	if !strings.HasPrefix(s, first) {
		return false
	}
	s = s[len(first):]
	for {
		var piece string
		if piece, rest, more = strings.Cut(rest, "*"); !more {
			return strings.HasSuffix(s, piece)
		}
		at := strings.Index(s, piece)
		if at < 0 {
			return false
		}
		s = s[at+len(piece):]
	}
}
