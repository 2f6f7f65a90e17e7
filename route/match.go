package route

import (
	"strings"

	"github.com/postrider/postrider"
)

// Match says which messages a rule is for: those that have all of it. An empty
// Match is for every message.
type Match struct {
	Topic string // a pattern; "" for every topic
	Type  string // a pattern; "" for every type, also none
	// Headers that the message must have, by name, with a pattern of the value.
	// "*" asks for the header alone.
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

// covers reports whether every message that o matches is matched by w. It may
// miss some, and is never wrong when it says so.
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

// covers: a pattern that matches another one as a text, star for star, matches
// whatever that one does.
func covers(pattern, other string) bool {
	if other == "" {
		other = "*"
	}
	return pattern == "" || glob(pattern, other)
}

// glob reports whether s is pattern, in which * stands for anything.
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
