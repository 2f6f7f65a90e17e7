package main

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

func TestErase(t *testing.T) {
	url := outboxOn(t, testserver.SharedPostgres(t, "18"))
	mustCLI(t, oneMessage+oneMessage, "enqueue", "--store", url)
	if got := cli(t, nil, "", "erase", "--key", "o-1", "--reason", "x", "--store", url); got.code != exit.Failure || !strings.Contains(got.err, `2 in pipe "main"`) {
		t.Errorf("nothing is delivered yet: code %d, %s", got.code, got.err)
	}
	if got := mustCLI(t, "", "erase", "--key", "o-1", "--dry-run", "--store", url, "-o", "json"); !strings.Contains(got, `"rows":0,"before":0,"discarded":0,"pending":{"main":2}`) {
		t.Errorf("dry run: %s", got)
	}
	if got := mustCLI(t, "", "erase", "--key", "nobody", "--reason", "x", "--store", url); !strings.Contains(got, "erased") {
		t.Errorf("a key without messages: %s", got)
	}
	for want, args := range map[string][]string{
		"no key":                      {"erase", "--reason", "x", "--store", url},
		"missing reason":              {"erase", "--key", "k", "--store", url},
		"PostgreSQL has all of this":  {"erase", "--key", "k", "--reason", "x", "--store", "memory:"},
		"choose one":                  {"prune", "--payload-retention", "1h", "--archive", t.TempDir(), "--store", url},
		"must not be negativ":         {"prune", "--payload-retention", "-1h", "--store", url},
		"unknown command or argument": {"erase", "k", "--store", url},
	} {
		if got := cli(t, nil, "", args...); got.code == 0 || !strings.Contains(got.err, want) {
			t.Errorf("%q: code %d, %s", args, got.code, got.err)
		}
	}
}
