package main

import (
	"strings"
	"testing"
)

// TestOnly: -only names servers by the first words of their names, with those of -all among them.
func TestOnly(t *testing.T) {
	list, err := selected(false, "buf, Apicurio,postgresql")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range list {
		names = append(names, s.name)
	}
	if got := strings.Join(names, ", "); !strings.HasPrefix(got, "buf ") || strings.Count(got, "PostgreSQL") != 4 || len(list) != 6 {
		t.Errorf("selected %s", got)
	}
	if _, err := selected(true, "bof"); err == nil || !strings.Contains(err.Error(), `"bof"`) || !strings.Contains(err.Error(), "buf, chromium") {
		t.Errorf("an unknown name: %v", err)
	}
}
