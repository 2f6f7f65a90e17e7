package output

import (
	"bytes"
	"io"
	"os"
	"regexp"
)

// Colours reports whether text that goes to w is coloured: w is a terminal, and the variable
// NO_COLOR (https://no-color.org) is empty.
func Colours(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && IsTerminal(w) }

// The sequences of ECMA-48 that begin and end a colour.
const (
	red    = "\x1b[1;31m"
	yellow = "\x1b[33m"
	green  = "\x1b[32m"
	bold   = "\x1b[1m"
	plain  = "\x1b[0m"
)

var (
	verdict = regexp.MustCompile(`^ *(CRITICAL|REFUSED|WARNING|SKIPPED|OK)\b`)
	heading = regexp.MustCompile(`^[A-Z]+( +[A-Z]+)+ *$`) // of a table
)

// painted colours the verdict that a line begins with, and headings. The text holds no
// escape sequence: see [Visible].
func painted(text []byte) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(text) {
		body := bytes.TrimSuffix(line, []byte("\n"))
		end := line[len(body):]
		switch found := verdict.FindSubmatchIndex(body); {
		case found != nil:
			from, to := found[2], found[3]
			colour := green
			switch body[from] {
			case 'C', 'R':
				colour = red
			case 'W', 'S':
				colour = yellow
			}
			b.Write(body[:from])
			b.WriteString(colour)
			b.Write(body[from:to])
			b.WriteString(plain)
			b.Write(body[to:])
		case heading.Match(body):
			b.WriteString(bold)
			b.Write(body)
			b.WriteString(plain)
		default:
			b.Write(body)
		}
		b.Write(end)
	}
	return b.Bytes()
}
