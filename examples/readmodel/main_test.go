package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/examples/internal/embedded"
)

func TestReadModel(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out strings.Builder
	if err := run(ctx, &out, filepath.Join(t.TempDir(), "shop.db")); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "b-1: New title, 9.00\nb-2: Second book, 20.50\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

// TestOldAfterNew: versions come newest first, each twice; only the newest shows.
//
// Promises: E
func TestOldAfterNew(t *testing.T) {
	app, err := embedded.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"), tables)
	if err != nil {
		t.Fatal(err)
	}
	defer app.DB.Close()
	var msgs []postrider.Message
	for v := 5; v >= 1; v-- {
		m := postrider.JSON("products", "b-1", "product.saved", Product{"b-1", "A book", 100 * v})
		m.ID, m.Version = fmt.Sprintf("01890a5d-ac96-774b-8cce-%012d", v), int64(v)
		msgs = append(msgs, m, m)
	}
	for _, err := range app.Bus.Sink().Deliver(t.Context(), broker.Batch{Messages: msgs}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	c := readModel(app.Bus.Source("search", "products"), app.DB)
	if err := app.Handle(ctx, c, len(msgs)); err != nil {
		t.Fatal(err)
	}
	var line string
	if err := app.DB.QueryRow("SELECT line FROM search").Scan(&line); err != nil || line != "A book, 5.00" {
		t.Errorf("the table says %q (%v), want the newest; %+v", line, err, c.Stats())
	}
	if s := c.Stats(); s.Effects != 1 || s.Stale != 4 {
		t.Errorf("%+v, want one effect and four stale", s)
	}
}
