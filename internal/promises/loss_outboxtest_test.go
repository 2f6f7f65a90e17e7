package promises

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/outboxtest"
)

// fakeT records a failure instead of ending the test.
type fakeT struct {
	testing.TB
	fatal string
}

func (f *fakeT) Helper()                           {}
func (f *fakeT) Context() context.Context          { return context.Background() }
func (f *fakeT) Fatalf(format string, args ...any) { f.fatal = fmt.Sprintf(format, args...) }

func TestRequireEnqueued(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		db, _ := sqlite(t)
		sqliteOutbox(t, db)
		requireEnqueued(t, db, dialect.SQLite)
	})
	t.Run("postgres", func(t *testing.T) { requireEnqueued(t, openSQL(t, "pgx", postgres18(t)), dialect.Postgres) })
}

func requireEnqueued(t *testing.T, db *sql.DB, d dialect.Dialect) {
	t.Helper()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	err = outbox.New(d, nil).Enqueue(t.Context(), tx,
		postrider.JSON("orders", "o1", "order.placed", order{"o1", 1}), postrider.JSON("orders", "o2", "order.placed", order{"o2", 2}))
	if err != nil {
		t.Fatal(err)
	}
	m := outboxtest.RequireEnqueued(t, tx, d, outboxtest.Want{Topic: "orders", Key: "o2", Payload: map[string]any{"N": 2, "ID": "o2"}})
	if m.Type != "order.placed" || m.ID == "" {
		t.Errorf("got %+v", m)
	}
	outboxtest.RequireNone(t, tx, d, outboxtest.Want{Topic: "orders.cancelled"})

	for _, c := range []struct {
		want outboxtest.Want
		says string
	}{
		{outboxtest.Want{Topic: "orders"}, "2 messages match"},
		{outboxtest.Want{Key: "o3"}, "0 messages match"},
		{outboxtest.Want{Key: "o1", Payload: order{"o1", 9}}, "0 messages match"},
		{outboxtest.Want{Key: "o1", Payload: []byte("{}")}, `the outbox holds {topic "orders", key "o1"`},
	} {
		f := &fakeT{TB: t}
		outboxtest.RequireEnqueued(f, tx, d, c.want)
		if !strings.Contains(f.fatal, c.says) {
			t.Errorf("%v: got %q, want %q", c.want, f.fatal, c.says)
		}
	}
	f := &fakeT{TB: t}
	if outboxtest.RequireNone(f, tx, d, outboxtest.Want{Key: "o1"}); f.fatal == "" {
		t.Error("RequireNone overlooked a message")
	}
}
