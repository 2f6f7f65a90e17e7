package patterns

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/examples/internal/embedded"
)

func shop(t *testing.T) *embedded.App {
	t.Helper()
	app, err := embedded.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"), tables)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = app.DB.Close() })
	return app
}

func orders(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM orders").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPublishBeforeCommit: an order that the database refuses leaves its message, a phantom, with consumers.
func TestPublishBeforeCommit(t *testing.T) {
	app := shop(t)
	if _, err := app.DB.ExecContext(t.Context(), "CREATE TRIGGER sold_out BEFORE INSERT ON orders WHEN new.item = 'book' BEGIN SELECT raise(ABORT, 'sold out'); END"); err != nil {
		t.Fatal(err)
	}
	if err := PublishFirst(t.Context(), app.DB, app.Bus.Sink(), Order{"o-1", "pen"}); err != nil {
		t.Fatal(err)
	}
	if err := PublishFirst(t.Context(), app.DB, app.Bus.Sink(), Order{"o-2", "book"}); err == nil {
		t.Fatal("the database has accepted an order that is sold out")
	}
	if stored, sent := orders(t, app.DB), app.Bus.Len(Topic); stored != 1 || sent != 2 {
		t.Errorf("%d orders and %d messages, want 1 and 2: one of them a phantom", stored, sent)
	}
}

// TestListenToYourself: the shop does not see its order until the message returns, stores it once though it arrives
// twice, and takes no order while the broker is down.
func TestListenToYourself(t *testing.T) {
	app := shop(t)
	for range 2 { // the first answer was lost, so the caller asks again
		if err := ListenToYourself(t.Context(), app.Bus.Sink(), Order{"o-1", "book"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := orders(t, app.DB); n != 0 {
		t.Errorf("%d orders before the message has returned, want 0", n)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := app.Handle(ctx, Listener(app.Bus.Source("shop", Topic), app.DB), 2); err != nil {
		t.Fatal(err)
	}
	if n := orders(t, app.DB); n != 1 {
		t.Errorf("%d orders of two messages with one id, want 1", n)
	}
	down := errors.New("the broker is down")
	app.Bus.SetFault(func(context.Context, postrider.Message) membroker.Outcome { return membroker.Outcome{Err: down} })
	if err := ListenToYourself(t.Context(), app.Bus.Sink(), Order{"o-2", "pen"}); !errors.Is(err, down) {
		t.Errorf("an order without the broker: %v", err)
	}
}
