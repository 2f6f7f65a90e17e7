// Command projection keeps the balances that follow from the events of
// accounts, in one process on one SQLite file. An event is a change, so each
// must be applied once and in turn, however the broker brings them: contiguous.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/examples/internal/embedded"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/outbox"
)

// Booked is what happens to an account.
type Booked struct{ Amount int64 }

const tables = `
CREATE TABLE IF NOT EXISTS event (account TEXT, version INTEGER, amount INTEGER, PRIMARY KEY (account, version));
CREATE TABLE IF NOT EXISTS balance (account TEXT PRIMARY KEY, amount INTEGER, lowest INTEGER)`

// book appends an event to the stream of its account. Its place there is the
// message's version: 1, 2, 3 ... without holes, as the primary key sees to.
func book(ctx context.Context, events *outbox.Outbox, tx *sql.Tx, account string, amount int64) error {
	var version int64
	err := tx.QueryRowContext(ctx, `INSERT INTO event SELECT $1, coalesce(max(version), 0) + 1, $2 FROM event WHERE account = $1
		RETURNING version`, account, amount).Scan(&version)
	if err != nil {
		return err
	}
	m := postrider.JSON("accounts", account, "booked", Booked{amount})
	m.Version = version
	return events.Enqueue(ctx, tx, m)
}

// projection applies what src brings to the balances in db. The lowest balance
// ever is right only if no event came before its turn.
func projection(src broker.Source, db *sql.DB) *consumer.Consumer[*sql.Tx] {
	c := consumer.New(src, consumer.SQL(db, dialect.SQLite), &consumer.Options{
		Name:  "balances",
		Order: func(string) inbox.Order { return inbox.Contiguous },
	})
	c.HandleMessage("booked", func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
		var e Booked
		if err := json.Unmarshal(m.Payload, &e); err != nil {
			return consumer.Permanent(err)
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO balance VALUES ($1, $2, min($2, 0)) ON CONFLICT (account)
			DO UPDATE SET amount = amount + excluded.amount, lowest = min(lowest, amount + excluded.amount)`, m.Key, e.Amount)
		return err
	})
	return c
}

func main() {
	if err := run(context.Background(), os.Stdout, "projection.db"); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, file string) error {
	app, err := embedded.Open(ctx, file, tables)
	if err != nil {
		return err
	}
	defer app.DB.Close()
	accounts, bookings := []string{"alice", "bob"}, []int64{100, -30, -90, 50}
	err = app.Do(ctx, func(tx *sql.Tx) error {
		for _, account := range accounts {
			for _, amount := range bookings {
				if err := book(ctx, app.Outbox, tx, account, amount); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	balances := projection(app.Bus.Source("balances", "accounts"), app.DB)
	if err := app.Handle(ctx, balances, len(accounts)*len(bookings)); err != nil {
		return err
	}
	rows, err := app.DB.QueryContext(ctx, "SELECT account, amount, lowest FROM balance ORDER BY account")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var account string
		var amount, lowest int64
		if err := rows.Scan(&account, &amount, &lowest); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s has %d, and had %d once\n", account, amount, lowest)
	}
	return rows.Err()
}
