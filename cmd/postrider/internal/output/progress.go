package output

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Bar is a line on a terminal that tells how far something long has come, how fast it goes and
// how long it will take. It is drawn again at most five times a second.
type Bar struct {
	out   io.Writer
	name  string
	now   func() time.Time
	begun time.Time
	first int64 // done when it began
	drawn time.Time
	shown bool
}

// NewBar returns a bar that writes to a terminal. It draws nothing yet.
func NewBar(out io.Writer, name string) *Bar { return &Bar{out: out, name: name, now: time.Now} }

const (
	barWidth = 24
	barEvery = 200 * time.Millisecond
	barRests = time.Second // before a rate is told
)

// Show draws the bar when the last one is old enough. total is 0 if it is unknown.
func (b *Bar) Show(done, total int64) {
	now := b.now()
	if b.begun.IsZero() {
		b.begun, b.first = now, done
	}
	if now.Sub(b.drawn) < barEvery {
		return
	}
	b.drawn, b.shown = now, true
	fmt.Fprint(b.out, "\r"+b.line(done, total, now.Sub(b.begun))+"\x1b[K")
}

func (b *Bar) line(done, total int64, took time.Duration) string {
	text := fmt.Sprintf("%s %d", b.name, done)
	if total > 0 {
		full := int(min(max(float64(done)/float64(total), 0), 1) * barWidth)
		text = fmt.Sprintf("%s [%s%s] %d of %d", b.name, strings.Repeat("#", full), strings.Repeat(".", barWidth-full), done, total)
	}
	rate := float64(done-b.first) / took.Seconds()
	if took < barRests || rate <= 0 {
		return text
	}
	text += fmt.Sprintf(", %.0f/s", rate)
	if done < total {
		text += ", " + Short(time.Duration(float64(total-done)/rate*float64(time.Second)).Round(time.Second)) + " left"
	}
	return text
}

// End leaves the line.
func (b *Bar) End() {
	if b.shown {
		fmt.Fprint(b.out, "\r\x1b[K")
	}
}
