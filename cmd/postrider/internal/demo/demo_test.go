package demo

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestInvocation(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "postrider")
	if err := os.WriteFile(file, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	at := func(path string) func() (string, error) { return func() (string, error) { return path, nil } }
	found := func(path string) func(string) (string, error) {
		return func(string) (string, error) { return path, nil }
	}
	missing := func(string) (string, error) { return "", exec.ErrNotFound }
	for _, tc := range []struct {
		name, arg0, want string
		executable       func() (string, error)
		lookPath         func(string) (string, error)
	}{
		{"on the PATH", "postrider", "postrider", at(file), found(file)},
		{"another one on the PATH", "bin/postrider", "bin/postrider", at(file), found("/bin/sh")},
		{"not on the PATH", "./postrider", "./postrider", at(file), missing},
		{"go run", "/tmp/go-build1/b001/exe/postrider", "go run ./cmd/postrider", at("/tmp/go-build1/b001/exe/postrider"), missing},
	} {
		if got := invocation(tc.arg0, tc.executable, tc.lookPath); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// On a terminal the block is redrawn in place; elsewhere every look is a line.
func TestView(t *testing.T) {
	l := look{orders: 30, pending: 4, sent: 80, effects: 76, lag: 250 * time.Millisecond}
	var lines strings.Builder
	v := &view{out: &lines, total: 60, planned: 2, begun: time.Now()}
	v.draw(l)
	v.killed(true)
	v.takenOver(1100 * time.Millisecond)
	for _, want := range []string{"orders 30/60  pending 4  sent 80  lag 250ms  effects 76  kills 0\n", "relay killed (1 of 2)\n", "taken over after 1.1s\n"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("the lines hold no %q:\n%s", want, lines.String())
		}
	}
	if strings.Contains(lines.String(), "\x1b") {
		t.Errorf("the lines hold control sequences: %q", lines.String())
	}

	var screen strings.Builder
	v = &view{out: &screen, tty: true, total: 60, planned: 2, begun: time.Now()}
	v.draw(l)
	first := screen.String()
	v.killed(true)
	v.draw(l)
	second := strings.TrimPrefix(screen.String(), first)
	if up := fmt.Sprintf("\x1b[%dA", strings.Count(first, "\n")); !strings.HasPrefix(second, up) || strings.Count(second, "\n") != strings.Count(first, "\n") {
		t.Errorf("the second block does not lie on the first:\n%q\n%q", first, second)
	}
	if !strings.Contains(first, "[####################....................]") || !strings.Contains(second, "dead: its lease runs out") {
		t.Errorf("blocks:\n%s\n%s", first, second)
	}
}

// The count must see every broken promise.
func TestCompareBites(t *testing.T) {
	steps := map[string]int{"a/placed": 1, "a/paid": 2, "a/shipped": 3}
	at := time.Unix(0, 0)
	c := func(ref string, second int) copyAt {
		return copyAt{Ref: ref, Order: "a", at: at.Add(time.Duration(second) * time.Second)}
	}
	for _, tc := range []struct {
		name   string
		copies []copyAt
		want   Answer
	}{
		{"kept", []copyAt{c("a/placed", 0), c("a/paid", 1), c("a/paid", 2), c("a/shipped", 5)}, Answer{Messages: 3, Delivered: 4, Duplicates: 1, MaxGapMS: 3000}},
		{"rewind", []copyAt{c("a/placed", 0), c("a/paid", 1), c("a/placed", 2), c("a/paid", 3), c("a/shipped", 4)}, Answer{Messages: 3, Delivered: 5, Duplicates: 2, MaxGapMS: 1000}},
		{"lost", []copyAt{c("a/placed", 0), c("a/paid", 1)}, Answer{Messages: 3, Delivered: 2, Lost: 1, MaxGapMS: 1000}},
		{"phantom", []copyAt{c("a/placed", 0), c("a/declined", 1), c("a/paid", 2), c("a/shipped", 3)}, Answer{Messages: 3, Delivered: 4, Phantom: 1, MaxGapMS: 1000}},
		{"unreadable", []copyAt{c("a/placed", 0), c("a/paid", 1), c("a/shipped", 2), decodeCopy([]byte("{"), at)}, Answer{Messages: 3, Delivered: 4, Phantom: 1, MaxGapMS: 1000}},
		{"ahead", []copyAt{c("a/paid", 0), c("a/placed", 1), c("a/shipped", 2)}, Answer{Messages: 3, Delivered: 3, OutOfOrder: 2, MaxGapMS: 1000}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := compare(steps, tc.copies); got != tc.want {
				t.Errorf("compare = %+v, want %+v", got, tc.want)
			}
		})
	}
}
