// Package reference compares the pages of docs/reference with the code that they are made of, for tests.
package reference

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// update is the command that writes the pages.
const update = "POSTRIDER_UPDATE=1 go test ./cmd/postrider/... -run TestReference"

// Check compares a generated page of docs/reference with the file, which
// POSTRIDER_UPDATE=1 writes.
func Check(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(Docs(t), "reference", name)
	text = "<!-- Generated from the code: " + update + " -->\n\n" + text
	if os.Getenv("POSTRIDER_UPDATE") == "1" {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(path); err != nil || string(have) != text {
		t.Errorf("docs/reference/%s differs from the code (%v): %s", name, err, update)
	}
}

// Docs returns the folder of the documents, above the package under test.
func Docs(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, missing := os.Stat(filepath.Join(dir, "docs", "reference")); missing == nil {
			return filepath.Join(dir, "docs")
		}
		dir = filepath.Dir(dir)
	}
	t.Fatalf("docs/reference is in no folder above the package (%v)", err)
	return ""
}

// Row is a line of a table, also for cells of several lines.
func Row(cells ...string) string {
	escape := strings.NewReplacer("|", `\|`, "\n", " ")
	for i, c := range cells {
		cells[i] = escape.Replace(c)
	}
	return strings.TrimRight("| "+strings.Join(cells, " | "), " ") + " |\n"
}
