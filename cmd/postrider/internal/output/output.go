// Package output prints what commands answer: in a format for programs, or as text that a terminal cannot obey.
package output

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// Printer prints the answer of a command.
type Printer struct {
	Out      io.Writer
	Format   string // one of Formats; "" is text
	Coloured bool   // text has colours: see [Colours]
}

// Print writes v in a format for programs, or what text writes as aligned columns.
func (p Printer) Print(v any, text func(w *tabwriter.Writer)) error {
	if p.Structured() {
		return p.structured(v)
	}
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	text(w)
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := p.Out.Write(p.finished(b.Bytes()))
	return err
}

// finished is text as it is written: with colours where they are wanted.
func (p Printer) finished(text []byte) []byte {
	if p.Coloured {
		return painted(text)
	}
	return text
}

// Row writes one line of cells, of which a terminal obeys nothing: see [Visible].
func Row(w *tabwriter.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, Visible(fmt.Sprint(c)))
	}
	fmt.Fprintln(w)
}

// Visible escapes what a terminal would obey or what reorders text: control
// characters, C1, bidirectional marks.
func Visible(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == unicode.ReplacementChar || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Short is a duration for people.
func Short(d time.Duration) string {
	switch {
	case d <= 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// Stamp is a time for people, in UTC; "" for none.
func Stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
