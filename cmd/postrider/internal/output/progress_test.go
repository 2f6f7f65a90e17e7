package output

import (
	"strings"
	"testing"
	"time"
)

func TestBar(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	b := NewBar(&out, "retry")
	b.now = func() time.Time { return now }
	b.End()
	if out.String() != "" {
		t.Errorf("a bar that was not shown is ended with %q", out.String())
	}
	b.Show(100, 1100)
	now = now.Add(barEvery / 2)
	b.Show(150, 1100) // too soon
	now = now.Add(10*time.Second - barEvery/2)
	b.Show(600, 1100)
	want := "\rretry [##......................] 100 of 1100\x1b[K\rretry [#############...........] 600 of 1100, 50/s, 10s left\x1b[K"
	if out.String() != want {
		t.Errorf("drawn %q, want %q", out.String(), want)
	}
	now = now.Add(time.Second)
	b.Show(1200, 1100) // more than was planned
	b.End()
	if got := out.String(); !strings.HasSuffix(got, "[########################] 1200 of 1100, 100/s\x1b[K\r\x1b[K") {
		t.Errorf("the end is %q", got)
	}
	out.Reset()
	b = NewBar(&out, "letters")
	b.now = func() time.Time { return now }
	b.Show(10_000, 0)
	now = now.Add(2 * time.Second)
	b.Show(30_000, 0)
	if want := "\rletters 10000\x1b[K\rletters 30000, 10000/s\x1b[K"; out.String() != want {
		t.Errorf("without a total %q, want %q", out.String(), want)
	}
}
