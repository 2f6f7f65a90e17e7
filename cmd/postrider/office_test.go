package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
)

// A command on a store that lacks an ability prints one line: what, in which
// kind of store, why, and what to do instead.
func TestMissingAbilities(t *testing.T) {
	sqlite := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	mustCLI(t, "", "migrate", "--store", sqlite)
	for _, c := range []struct {
		command, store, want string
		code                 exit.Code
	}{
		{"journal", "memory:", "journal of acts", exit.Failure},
		{"skip --topic t --reason r --yes", "memory:", "acts on many records", exit.Failure},
		{"pause --endpoint e --reason r", "memory:", "pause: stopped destinations", exit.Failure},
		{"pipe list", "memory:", "pipes", exit.Usage},
		{"prune", "memory:", "retention", exit.Usage},
		{"audit", sqlite, "books", exit.Usage},
		{"partitions", sqlite, "partitions", exit.Failure},
		{"partitions tend", sqlite, "partitions", exit.Failure},
		{"strict list", sqlite, "strict keys", exit.Failure},
		{"strict add t", sqlite, "strict keys", exit.Failure},
		{"erase --key k --reason r", sqlite, "erase: erasure", exit.Failure},
		{"doctor", "memory:", "diagnosis", exit.Usage},
		{"schema check --rows 1 --schemas ../../schema/jsonschema/testdata/schemas", "memory:", "newest messages", exit.Usage},
		{"check --broker memory: --newest 1", "memory:", "newest messages", exit.Usage},
	} {
		t.Run(c.command, func(t *testing.T) {
			got := cli(t, nil, "", append(strings.Fields(c.command), "--store", c.store)...)
			kind, _, _ := strings.Cut(c.store, ":")
			line := "postrider: " + c.want + ": not supported by this store (" + kind + "): "
			if got.code != c.code || !strings.HasPrefix(got.err, line) || strings.Count(got.err, "\n") != 1 || !strings.Contains(got.err, "; ") {
				t.Errorf("exit code %d, want %d\n%s\nwant one line that begins with %q and tells what to do", got.code, c.code, got.err, line)
			}
		})
	}
}
