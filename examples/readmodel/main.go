// Command readmodel keeps a table of account statements that follows from two
// topics, in one process on one SQLite file. A message about an owner carries the
// whole state: only the newest counts, and an old one that comes late must not
// overwrite it (latest). A booking is a change: each is applied once and in turn,
// in whatever order the broker delivers them (contiguous).
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

// The topics.
const (
	owners   = "owners"
	bookings = "bookings"
)

// Owner is the payload of an owner's message: the state after a change.
type Owner struct{ Name, City string }

// Booked is the payload of a booking: what it changes.
type Booked struct{ Amount int64 }

const tables = `
CREATE TABLE IF NOT EXISTS owner (account TEXT PRIMARY KEY, name TEXT, city TEXT, version INTEGER);
CREATE TABLE IF NOT EXISTS booking (account TEXT, version INTEGER, amount INTEGER, PRIMARY KEY (account, version));
CREATE TABLE IF NOT EXISTS statement (account TEXT PRIMARY KEY, owner TEXT DEFAULT '', amount INTEGER DEFAULT 0, lowest INTEGER DEFAULT 0)`

// save changes an owner and enqueues the new state. The row counts its versions.
func save(ctx context.Context, ob *outbox.Outbox, tx *sql.Tx, account string, o Owner) error {
	var version int64
	err := tx.QueryRowContext(ctx, `INSERT INTO owner VALUES ($1, $2, $3, 1) ON CONFLICT (account)
		DO UPDATE SET name = excluded.name, city = excluded.city, version = version + 1 RETURNING version`,
		account, o.Name, o.City).Scan(&version)
	if err != nil {
		return err
	}
	m := postrider.JSON(owners, account, "owner.saved", o)
	m.Version = version
	return ob.Enqueue(ctx, tx, m)
}

// book appends a booking to its account and enqueues it. Its place there is the
// message's version: 1, 2, 3 ... without holes, which the primary key ensures.
func book(ctx context.Context, ob *outbox.Outbox, tx *sql.Tx, account string, amount int64) error {
	var version int64
	err := tx.QueryRowContext(ctx, `INSERT INTO booking SELECT $1, coalesce(max(version), 0) + 1, $2 FROM booking WHERE account = $1
		RETURNING version`, account, amount).Scan(&version)
	if err != nil {
		return err
	}
	m := postrider.JSON(bookings, account, "booked", Booked{amount})
	m.Version = version
	return ob.Enqueue(ctx, tx, m)
}

// statements applies what src delivers to the table in db. The lowest balance ever
// is right only if no booking came before its turn.
func statements(src broker.Source, db *sql.DB) *consumer.Consumer[*sql.Tx] {
	c := consumer.New(src, consumer.SQL(db, dialect.SQLite), &consumer.Options{
		Name: "statements",
		Order: func(topic string) inbox.Order {
			if topic == owners {
				return inbox.Latest
			}
			return inbox.Contiguous
		},
	})
	c.HandleMessage("owner.saved", func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
		var o Owner
		if err := json.Unmarshal(m.Payload, &o); err != nil {
			return consumer.Permanent(err)
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO statement (account, owner) VALUES ($1, $2)
			ON CONFLICT (account) DO UPDATE SET owner = excluded.owner`, m.Key, o.Name+" of "+o.City)
		return err
	})
	c.HandleMessage("booked", func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
		var e Booked
		if err := json.Unmarshal(m.Payload, &e); err != nil {
			return consumer.Permanent(err)
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO statement (account, amount, lowest) VALUES ($1, $2, min($2, 0)) ON CONFLICT (account)
			DO UPDATE SET amount = amount + excluded.amount, lowest = min(lowest, amount + excluded.amount)`, m.Key, e.Amount)
		return err
	})
	return c
}

func main() {
	if err := run(context.Background(), os.Stdout, "readmodel.db"); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, file string) error {
	app, err := embedded.Open(ctx, file, tables)
	if err != nil {
		return err
	}
	defer app.DB.Close()
	n := 0 // messages
	err = app.Do(ctx, func(tx *sql.Tx) error {
		for _, account := range []string{"a-1", "a-2"} {
			for _, city := range []string{"Bern", "Basel"} {
				if err := save(ctx, app.Outbox, tx, account, Owner{"Alice", city}); err != nil {
					return err
				}
				n++
			}
			for _, amount := range []int64{100, -30, -90, 50} {
				if err := book(ctx, app.Outbox, tx, account, amount); err != nil {
					return err
				}
				n++
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := app.Handle(ctx, statements(app.Bus.Source("statements", owners, bookings), app.DB), n); err != nil {
		return err
	}
	rows, err := app.DB.QueryContext(ctx, "SELECT account, owner, amount, lowest FROM statement ORDER BY account")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var account, owner string
		var amount, lowest int64
		if err := rows.Scan(&account, &owner, &amount, &lowest); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s has %d, and once had %d\n", account, owner, amount, lowest)
	}
	return rows.Err()
}
