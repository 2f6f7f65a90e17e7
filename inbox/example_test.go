package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
)

// Stand-ins for what an application has: a database, a message that it received,
// and a pool of pgx, which this module does not import.
var (
	ctx  = context.Background()
	db   *sql.DB
	msg  postrider.Message
	pool inbox.PgxBeginner[pgxTx]
)

type (
	pgxTx interface {
		Exec(ctx context.Context, query string, args ...any) (commandTag, error)
		QueryRow(ctx context.Context, query string, args ...any) pgxRow
		Commit(ctx context.Context) error
		Rollback(ctx context.Context) error
	}
	pgxRow     interface{ Scan(dest ...any) error }
	commandTag struct{}
)

func (commandTag) RowsAffected() int64 { return 0 }

// The inbox of one consumer, with its tables. Programs that start at once may all
// migrate.
func ExampleNew() {
	in := inbox.New(dialect.Postgres, "billing", nil)

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Rollback() // does nothing after Commit
	if err := in.Migrate(ctx, tx); err != nil {
		fmt.Println(err)
		return
	}
	if err := tx.Commit(); err != nil {
		fmt.Println(err)
	}
}

func ExampleInbox_Once() {
	in := inbox.New(dialect.Postgres, "billing", nil)

	err := in.Once(ctx, db, msg, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO invoice (order_id) VALUES ($1)", msg.Key)
		return err
	})
	if err != nil {
		fmt.Println(err) // do not acknowledge: the message returns
		return
	}
	// Acknowledge: there is one invoice, written now or earlier.
}

func ExampleInbox_OnceBatch() {
	in := inbox.New(dialect.Postgres, "billing", nil)

	msgs := []postrider.Message{msg}
	err := in.OnceBatch(ctx, db, msgs, func(tx *sql.Tx, fresh []postrider.Message) error {
		for _, m := range fresh { // those that were not processed before
			if _, err := tx.ExecContext(ctx, "INSERT INTO invoice (order_id) VALUES ($1)", m.Key); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		fmt.Println(err) // none of them happened: run them one by one with Once
	}
}

// An effect with an answer: a duplicate gets the first answer.
func ExampleInbox_OnceResult() {
	in := inbox.New(dialect.Postgres, "orders api", nil)

	answer, fresh, err := in.OnceResult(ctx, db, msg, func(tx *sql.Tx) ([]byte, error) {
		var id string
		err := tx.QueryRowContext(ctx, "INSERT INTO orders (item) VALUES ($1) RETURNING id", "book").Scan(&id)
		return []byte(id), err
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(answer), fresh)
}

// A transaction that the application has already begun.
func ExampleInbox_Claim() {
	in := inbox.New(dialect.Postgres, "billing", nil)

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Rollback()
	fresh, err := in.Claim(ctx, tx, msg)
	if err == nil && fresh {
		_, err = tx.ExecContext(ctx, "INSERT INTO invoice (order_id) VALUES ($1)", msg.Key)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		fmt.Println(err) // do not acknowledge: the message returns
	}
}

// With pgx, T is pgx.Tx and pool a *pgxpool.Pool.
func ExampleOncePgx() {
	in := inbox.New(dialect.Postgres, "billing", nil)

	err := inbox.OncePgx(ctx, in, pool, msg, func(tx pgxTx) error {
		_, err := tx.Exec(ctx, "INSERT INTO invoice (order_id) VALUES ($1)", msg.Key)
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
}

// With pgx, T is pgx.Tx and pool a *pgxpool.Pool.
func ExampleOnceResultPgx() {
	in := inbox.New(dialect.Postgres, "orders api", nil)

	answer, fresh, err := inbox.OnceResultPgx(ctx, in, pool, msg, func(tx pgxTx) ([]byte, error) {
		var id string
		err := tx.QueryRow(ctx, "INSERT INTO orders (item) VALUES ($1) RETURNING id", "book").Scan(&id)
		return []byte(id), err
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(answer), fresh)
}

// A program forgets old claims by a timer. Messages must not come back later than that.
func ExampleInbox_PruneAll() {
	in := inbox.New(dialect.Postgres, "billing", &inbox.Options{Horizon: 14 * 24 * time.Hour})

	removed, err := in.PruneAll(ctx, db, 30*24*time.Hour)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(removed, "claims forgotten")
}

// Retry every dead letter, once its cause is repaired.
func ExampleInbox_Revive() {
	in := inbox.New(dialect.Postgres, "billing", nil)

	letters, err := in.DeadLetters(ctx, db, "", 100)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range letters {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		if err := in.Revive(ctx, inbox.SQL(tx), d.Message.ID); err != nil {
			fmt.Println(errors.Join(err, tx.Rollback()))
			continue
		}
		fmt.Println(d.Message.ID, d.Cause, tx.Commit())
	}
}

func ExampleInbox_Status() {
	in := inbox.New(dialect.Postgres, "billing", nil)

	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Rollback()
	s, err := in.Status(ctx, inbox.SQL(tx))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Dead, "dead letters,", s.Gaps, "keys wait for a version")
}
