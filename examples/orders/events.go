package orders

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/schema"
)

// EventV1 is the first version of [Event]: everything was counted in pieces.
type EventV1 struct {
	Order string `json:"order"`
	Step  string `json:"step"`
	Ref   string `json:"ref"`
	SKU   string `json:"sku"`
	Qty   int    `json:"qty"`
}

// Events decodes all versions of the payload.
var Events = schema.Then(schema.Begin[EventV1](), func(e EventV1) (Event, error) {
	return Event{Order: e.Order, Step: e.Step, Ref: e.Ref, SKU: e.SKU, Quantity: Quantity{e.Qty, Piece}}, nil
})

// message is e in the version that the shop writes. An order in another unit that was
// placed before the shop wrote version 1 keeps the newest one.
func (s *Shop) message(e *Event) postrider.Message {
	if s.writeV1 && e.Quantity.Unit == Piece {
		m := postrider.JSON(s.topic, e.Order, e.Step, EventV1{Order: e.Order, Step: e.Step, Ref: e.Ref, SKU: e.SKU, Qty: e.Quantity.Amount})
		m.SchemaVersion = 1
		return m
	}
	m := postrider.JSON(s.topic, e.Order, e.Step, e)
	m.SchemaVersion = Events.Last()
	return m
}

// execer is a database or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// bound is a statement whose parameters are $1, $2 ... in their order, for a dialect.
func bound(d dialect.Dialect, query string) string {
	if d != dialect.MySQL {
		return query
	}
	for i := 1; strings.Contains(query, fmt.Sprint("$", i)); i++ {
		query = strings.Replace(query, fmt.Sprint("$", i), "?", 1)
	}
	return query
}

// word is the type of a short text, which MySQL indexes and gives a default.
func word(d dialect.Dialect) string {
	if d == dialect.MySQL {
		return "varchar(255)"
	}
	return "text"
}

// addColumn adds a column to a table of an older program; one that is there stays.
func addColumn(ctx context.Context, db execer, d dialect.Dialect, table, column, definition string) error {
	add, look := "ADD COLUMN IF NOT EXISTS ", ""
	switch d {
	case dialect.Postgres: // alone has this clause
	case dialect.SQLite:
		look = "SELECT count(*) > 0 FROM pragma_table_info($1) WHERE name = $2"
	case dialect.MySQL:
		look = "SELECT count(*) > 0 FROM information_schema.columns WHERE table_schema = database() AND table_name = ? AND column_name = ?"
	}
	if look != "" {
		var there bool
		if err := db.QueryRowContext(ctx, look, table, column).Scan(&there); err != nil {
			return fmt.Errorf("look for the column %s of %s: %w", column, table, err)
		}
		if there {
			return nil
		}
		add = "ADD COLUMN "
	}
	if _, err := db.ExecContext(ctx, "ALTER TABLE "+table+" "+add+column+" "+definition); err != nil {
		return fmt.Errorf("add the column %s to %s: %w", column, table, err)
	}
	return nil
}
