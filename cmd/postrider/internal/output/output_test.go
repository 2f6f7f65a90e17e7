package output

import (
	"strings"
	"testing"
	"text/tabwriter"
)

func TestVisibleEscapesWhatATerminalObeys(t *testing.T) {
	for in, want := range map[string]string{
		"plain ünï": "plain ünï",
		"\x1b[31m":  `\u001b[31m`,
		"a\nb\tc":   `a\u000ab\u0009c`,
		"\u009b1m":  `\u009b1m`,
		"\u202eabc": `\u202eabc`,
		"\u2028":    `\u2028`,
	} {
		if got := Visible(in); got != want {
			t.Errorf("visible(%q) = %q, want %q", in, got, want)
		}
	}
}

// No cell can forget it.
func TestRowEscapesEveryCell(t *testing.T) {
	var b strings.Builder
	p := Printer{Out: &b}
	err := p.Print(nil, func(w *tabwriter.Writer) { Row(w, "a\x1b[2Jb", 7, named("c\td\ne")) })
	if want := `a\u001b[2Jb  7  c\u0009d\u000ae` + "\n"; err != nil || b.String() != want {
		t.Errorf("printed %q, want %q, error %v", b.String(), want, err)
	}
}

type named string
