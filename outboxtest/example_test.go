package outboxtest_test

import (
	"database/sql"
	"testing"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outboxtest"
)

// Stand-ins for what a test has.
var (
	t  *testing.T
	tx *sql.Tx // in which the code under test has enqueued
)

type OrderPlaced struct{ Item string }

func ExampleRequireEnqueued() {
	m := outboxtest.RequireEnqueued(t, tx, dialect.Postgres, outboxtest.Want{
		Topic: "orders", Key: "o-1", Payload: OrderPlaced{"book"},
	})
	if m.Version != 1 {
		t.Errorf("version %d, want 1", m.Version)
	}
}

func ExampleRequireNone() {
	outboxtest.RequireNone(t, tx, dialect.Postgres, outboxtest.Want{Topic: "payments"})
}

func ExampleEnqueued() {
	msgs := outboxtest.Enqueued(t, tx, dialect.SQLite, nil)
	if len(msgs) != 2 || msgs[1].Type != "order.paid" {
		t.Errorf("enqueued %v", msgs)
	}
}
