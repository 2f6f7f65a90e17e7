package main

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store/sqlitestore"
)

func TestQuickstart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	file := filepath.Join(t.TempDir(), "shop.db")
	var out strings.Builder
	if err := run(ctx, &out, file); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{"invoice for order A-1", "invoice for order A-2", "invoice for order A-3"} // one key: in order
	if !slices.Equal(got, want) {
		t.Errorf("printed %q, want %q", got, want)
	}
	db, err := sqlitestore.OpenDB(file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var invoices int
	if err := db.QueryRow("SELECT count(*) FROM invoice JOIN orders USING (id)").Scan(&invoices); err != nil || invoices != 3 {
		t.Errorf("%d invoices that fit an order (%v), want 3", invoices, err)
	}
}
