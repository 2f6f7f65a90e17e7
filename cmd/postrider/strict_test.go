package main

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

func TestStrictTopics(t *testing.T) {
	url := outboxOn(t, testserver.SharedPostgres(t, "18"))
	for _, step := range []struct{ args, want string }{
		{"list", "none"},
		{"add orders", "topic orders is strict now"},
		{"add orders", "topic orders was that already"},
		{"list", "orders"},
		{"remove orders --actor ann --reason rest -o json", `{"changed":true,"strict":false,"topic":"orders"}`},
		{"list -o json", "[]"},
	} {
		if got := mustCLI(t, "", append([]string{"strict", "--store", url}, strings.Fields(step.args)...)...); !strings.Contains(got, step.want) {
			t.Errorf("strict %s: %q, want %q in it", step.args, got, step.want)
		}
	}
	if got := mustCLI(t, "", "journal", "--store", url, "--actor", "ann"); !strings.Contains(got, "strict remove") || !strings.Contains(got, "rest") {
		t.Errorf("the journal says %q", got)
	}
	if got := cli(t, nil, "", "strict", "add", "orders", "--store", "memory:"); got.code == 0 || !strings.Contains(got.err, "strict keys: not supported by this store (memory)") {
		t.Errorf("a store without strict keys: code %d, %s", got.code, got.err)
	}
	if got := cli(t, nil, "", "strict", "add", "--store", url); got.code != exit.Usage {
		t.Errorf("without a topic: code %d, %s", got.code, got.err)
	}
}
