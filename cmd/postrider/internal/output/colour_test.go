package output

import (
	"os"
	"strings"
	"testing"
	"text/tabwriter"
)

func TestColoursAreForTerminals(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	terminal, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a character device, as a terminal is
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	if !Colours(terminal) || Colours(&strings.Builder{}) {
		t.Errorf("colours on a terminal %v, elsewhere %v, want true and false", Colours(terminal), Colours(&strings.Builder{}))
	}
	t.Setenv("NO_COLOR", "1")
	if Colours(terminal) {
		t.Error("colours although NO_COLOR is set")
	}
}

func TestVerdictsAndHeadingsAreColoured(t *testing.T) {
	var b strings.Builder
	p := Printer{Out: &b, Coloured: true}
	err := p.Print(nil, func(w *tabwriter.Writer) {
		Row(w, "SEQ", "STATE", "KEY")
		Row(w, 1, "dead", "\x1b[31mOK")
		Row(w, "CRITICAL", "lag", "5 minutes")
		Row(w, "OKAY", "lag")
	})
	want := "\x1b[1mSEQ       STATE  KEY\x1b[0m\n1         dead   \\u001b[31mOK\n\x1b[1;31mCRITICAL\x1b[0m  lag    5 minutes\nOKAY      lag\n"
	if err != nil || b.String() != want {
		t.Errorf("printed %q, error %v, want %q", b.String(), err, want)
	}
}
