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

// Of a long line that replaces another, the part is shown in which they differ.
func TestLinesAroundTheDifference(t *testing.T) {
	same := strings.Repeat("x", 200)
	for i, c := range []struct{ from, to, part string }{
		{same + "OLD", same + "NEW", "OLD NEW"},
		{same + "OLD\n" + same + "OLDER", same + "NEW\n" + same + "NEWER", "OLD OLDER NEW NEWER"},
		{same + "OLD\nb", "b", "xxx"},
		{"b", "b\n" + same + "NEW", "xxx"},
	} {
		all := linesOf("a\n"+c.from+"\nc", "a\n"+c.to+"\nc")
		parts := strings.Fields(c.part)
		for n := range all {
			if got := counterpart(all, n); len(all) != len(parts) || !strings.Contains(got, parts[n]) || len(got) > mostShown+2*len(dots) {
				t.Errorf("%d: line %d of %d is shown as %q, want the part with %s", i, n, len(all), got, parts[n])
			}
		}
	}
}
