package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/store/sqlitestore"
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
func TestOldAfterNew(t *testing.T) {
	db, err := sqlitestore.Open(filepath.Join(t.TempDir(), "shop.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	bus := membroker.New(nil)
	c := readModel(bus.Source("search", "products"), db)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := c.Inbox().Migrate(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(tables); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	var msgs []postrider.Message
	for v := 5; v >= 1; v-- {
		m := postrider.JSON("products", "b-1", "product.saved", Product{"b-1", "A book", 100 * v})
		m.ID, m.Version = fmt.Sprintf("01890a5d-ac96-774b-8cce-%012d", v), int64(v)
		msgs = append(msgs, m, m)
	}
	for _, err := range bus.Sink().Deliver(t.Context(), msgs) {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	count := c.Stats
	for look := time.Tick(10 * time.Millisecond); ctx.Err() == nil && count().Effects+count().Duplicates+count().Stale < 10; <-look {
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	var line string
	if err := db.QueryRow("SELECT line FROM search").Scan(&line); err != nil || line != "A book, 5.00" {
		t.Errorf("the table says %q (%v), want the newest; %+v", line, err, count())
	}
	if count().Effects != 1 || count().Stale != 4 {
		t.Errorf("%+v, want one effect and four stale", count())
	}
}
