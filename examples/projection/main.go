// Command projection keeps the balances that follow from the events of
// accounts, in one process on one SQLite file. An event is a change, so each
// must be applied once and in turn, however the broker brings them: contiguous.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/sqlitestore"
)

// Booked is what happens to an account.
type Booked struct{ Amount int64 }

const tables = `
CREATE TABLE IF NOT EXISTS event (account TEXT, version INTEGER, amount INTEGER, PRIMARY KEY (account, version));
CREATE TABLE IF NOT EXISTS balance (account TEXT PRIMARY KEY, amount INTEGER, lowest INTEGER)`

var events = outbox.New(outbox.SQLite, nil)

// book appends an event to the stream of its account. Its place there is the
// message's version: 1, 2, 3 ... without holes, as the primary key sees to.
func book(ctx context.Context, tx *sql.Tx, account string, amount int64) error {
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
	c := consumer.New(src, consumer.SQL(db, outbox.SQLite), &consumer.Options{
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
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	db, err := sqlitestore.Open(file)
	if err != nil {
		return err
	}
	defer db.Close()
	st, bus := sqlitestore.New(db, nil), membroker.New(nil)
	if _, err := st.Migrate(ctx, store.MigrateRequest{}); err != nil {
		return err
	}
	balances := projection(bus.Source("balances", "accounts"), db)
	bookings := []Booked{{100}, {-30}, {-90}, {50}}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	_, err = tx.ExecContext(ctx, tables)
	err = errors.Join(err, balances.Inbox().Migrate(ctx, tx))
	for _, account := range []string{"alice", "bob"} {
		for _, b := range bookings {
			err = errors.Join(err, book(ctx, tx, account, b.Amount))
		}
	}
	if err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}

	ended := make(chan error, 2)
	go func() { ended <- relay.New(st, bus.Sink(), nil).Run(ctx) }()
	go func() { ended <- balances.Run(ctx) }()
	for look := time.Tick(20 * time.Millisecond); balances.Stats().Effects < int64(2*len(bookings)); {
		select {
		case <-look:
		case err := <-ended:
			return err
		}
	}
	stop() // both finish what they have begun
	if err := errors.Join(<-ended, <-ended); err != nil {
		return err
	}
	rows, err := db.Query("SELECT account, amount, lowest FROM balance ORDER BY account")
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
