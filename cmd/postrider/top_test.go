package main

import (
	"strings"
	"testing"
)

func TestTopNeedsATerminal(t *testing.T) {
	for want, args := range map[string][]string{
		"needs a terminal": {"top", "--store", "memory:"},
		"draws a screen":   {"top", "--store", "memory:", "-o", "json"},
		"100ms or more":    {"top", "--store", "memory:", "--every", "1ms"},
	} {
		if got := cli(t, nil, "", args...); got.code != 2 || !strings.Contains(got.err, want) || got.out != "" {
			t.Errorf("%v: exit code %d, %q%q", args, got.code, got.out, got.err)
		}
	}
}
