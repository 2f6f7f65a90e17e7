package schemas

import (
	"strings"
	"testing"
)

// Of two long values the part is shown in which they differ.
func TestAroundTheDifference(t *testing.T) {
	same := strings.Repeat("x", 200)
	old, now := around(same+"OLD"+same, same+"NEW"+same)
	for text, part := range map[string]string{old: "OLD", now: "NEW"} {
		if !strings.HasPrefix(text, dots+"x") || !strings.Contains(text, part) || len(text) > mostShown+2*len(dots) {
			t.Errorf("%q is shown, want the part with %s", text, part)
		}
	}
	if old, now := around("a", "b"); old != "a" || now != "b" {
		t.Errorf("short values are shown as %q and %q", old, now)
	}
	if old, now := around("a"+same, "b"+same); old[:1] != "a" || now[:1] != "b" {
		t.Errorf("values that differ at once are shown as %q and %q", old, now)
	}
}
