package main

import (
	"slices"
	"strconv"
	"testing"

	"github.com/postrider/postrider/internal/lab/brokers"
)

// TestCheckerBites feeds the checker a history for each kind of error.
func TestCheckerBites(t *testing.T) {
	truth := map[string]int{"a": 3}
	for _, tc := range []struct {
		name string
		log  []string
		want Result
	}{
		{"in order", []string{"a:1:x", "a:2:x", "a:3:x"}, Result{OK: true, Committed: 3, Delivered: 3}},
		{"rewind", []string{"a:1:x", "a:2:x", "a:1:x", "a:2:x", "a:3:x"}, Result{OK: true, Committed: 3, Delivered: 5, Duplicates: 2, MaxRewind: 2}},
		{"lost at the end", []string{"a:1:x", "a:2:x"}, Result{Committed: 3, Delivered: 2, Lost: 1}},
		{"a step ahead", []string{"a:2:x", "a:1:x", "a:3:x"}, Result{Committed: 3, Delivered: 3, OutOfOrder: 1, MaxRewind: 2, Duplicates: 0}},
		{"rolled back", []string{"a:1:x", "a:2:x", "a:3:x", "a:4:x"}, Result{Committed: 3, Delivered: 4, Phantom: 1}},
		{"foreign", []string{"a:1:x", "a:2:x", "a:3:x", "what"}, Result{Committed: 3, Delivered: 4, Phantom: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newChecker()
			for _, p := range tc.log {
				c.add(brokers.Record{Payload: []byte(p)})
			}
			if got := c.judge(truth); got != tc.want {
				t.Errorf("judge = %+v\nwant    %+v", got, tc.want)
			}
		})
	}
}

// TestFindings describes a step ahead: what was stored before it, and what came later.
func TestFindings(t *testing.T) {
	c := newChecker()
	for i, p := range []string{"a:1:x", "b:1:x", "a:4:x", "a:2:x", "a:5:x", "b:3:x"} {
		c.add(brokers.Record{Payload: []byte(p), Place: "p" + strconv.Itoa(i)})
	}
	want := []string{
		"key a: version 4 (p2) stored after version 1 (p0), later version 2 (p3)",
		"key b: version 3 (p5) stored after version 1 (p1), none of those between later",
	}
	if got := c.findings(10); !slices.Equal(got, want) {
		t.Errorf("findings %q", got)
	}
	if got := c.findings(1); len(got) != 1 {
		t.Errorf("%d findings, want 1", len(got))
	}
}
