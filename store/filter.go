package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/postrider/postrider"
)

// Filter says which messages a pipe carries. Each kind of condition that is
// given must hold, and of its patterns one: a message passes when its topic
// matches one of Topics, its type one of Types, its key one of Keys, and it has
// every one of Headers. The zero Filter lets everything pass.
//
// A pattern is a whole value, or the beginning of one with a star behind it:
// "orders", "orders.*".
type Filter struct {
	Topics  []string          `json:"topics,omitempty"`
	Types   []string          `json:"types,omitempty"`
	Keys    []string          `json:"keys,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// ErrFilter is matched by every error of [Filter.Validate].
var ErrFilter = errors.New("filter")

// maxPatterns bounds a filter: it is looked at for every message.
const maxPatterns = 100

// IsZero reports whether everything passes.
func (f Filter) IsZero() bool {
	return len(f.Topics)+len(f.Types)+len(f.Keys)+len(f.Headers) == 0
}

// Validate reports the first pattern that cannot be used.
func (f Filter) Validate() error {
	for _, kind := range []struct {
		name     string
		patterns []string
	}{{"topic", f.Topics}, {"type", f.Types}, {"key", f.Keys}} {
		for _, p := range kind.patterns {
			body := strings.TrimSuffix(p, "*")
			switch {
			case p == "" && kind.name == "topic":
				return fmt.Errorf("%w: a topic is empty: every message has one", ErrFilter)
			case strings.Contains(body, "*"):
				return fmt.Errorf("%w: %s %q has a star before its end: write a whole value, or a beginning and one star", ErrFilter, kind.name, p)
			case strings.ContainsRune(p, 0):
				return fmt.Errorf("%w: %s %q contains a NUL byte, which no message can contain", ErrFilter, kind.name, p)
			}
		}
		if len(kind.patterns) > maxPatterns {
			return fmt.Errorf("%w: %d patterns for the %s: at most %d", ErrFilter, len(kind.patterns), kind.name, maxPatterns)
		}
	}
	for name := range f.Headers {
		if name == "" {
			return fmt.Errorf("%w: a header without a name", ErrFilter)
		}
	}
	if len(f.Headers) > maxPatterns {
		return fmt.Errorf("%w: %d headers: at most %d", ErrFilter, len(f.Headers), maxPatterns)
	}
	return nil
}

// Match reports whether a message passes.
func (f Filter) Match(m *postrider.Message) bool {
	if !matches(f.Topics, m.Topic) || !matches(f.Types, m.Type) || !matches(f.Keys, m.Key) {
		return false
	}
	for name, value := range f.Headers {
		if got, ok := m.Headers[name]; !ok || got != value {
			return false
		}
	}
	return true
}

func matches(patterns []string, value string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		if prefix, ok := strings.CutSuffix(p, "*"); ok {
			return strings.HasPrefix(value, prefix)
		}
		return value == p
	})
}

// String is the filter for people: "topic=orders.*|refunds type=paid header:region=eu".
func (f Filter) String() string {
	var parts []string
	for _, kind := range []struct {
		name     string
		patterns []string
	}{{"topic", f.Topics}, {"type", f.Types}, {"key", f.Keys}} {
		if len(kind.patterns) > 0 {
			parts = append(parts, kind.name+"="+strings.Join(kind.patterns, "|"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Headers)) {
		parts = append(parts, "header:"+name+"="+f.Headers[name])
	}
	return strings.Join(parts, " ")
}
