package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFirst(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out strings.Builder
	if err := first(ctx, &out, filepath.Join(t.TempDir(), "shop.db")); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "invoice for order A-1\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}
