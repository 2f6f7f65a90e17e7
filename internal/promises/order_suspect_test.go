package promises

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// uncounted is a source without the number of a delivery, like Kafka.
type uncounted struct{ *acked }

func (s uncounted) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := s.acked.Receive(ctx, limit)
	for i := range ds {
		ds[i].Attempt = 0
	}
	return ds, err
}

// begun records n attempts of m that another, ended process began and did not finish.
func begun(t *testing.T, db *sql.DB, in *inboxwork.Inbox, m postrider.Message, n int, alone bool) {
	t.Helper()
	for i := range n {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.BeginAttempt(t.Context(), inbox.SQL(tx), m, inboxwork.Try{Origin: "test", Owner: fmt.Sprint("gone", i), Alone: alone, TakeOver: true}); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSuspectRunsAlone: a message whose last two attempts ended with the process runs
// alone, so that a third end concerns no other message.
func TestSuspectRunsAlone(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		var msgs []postrider.Message
		for i := range 24 {
			msgs = append(msgs, message(i, "", "order.placed", order{"x", i}))
		}
		begun(t, db, in, msgs[4], 2, false)
		publish(t, b, msgs...)
		src := source(b, len(msgs))
		opts := quick
		opts.MaxAttempts = 5
		c := consumer.New(uncounted{src}, consumer.SQL(db, dialectOf(in, db)), &opts)
		var running, beside atomic.Int32
		var suspect atomic.Bool // is running
		consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, o order) error {
			others := running.Add(1) - 1
			defer running.Add(-1)
			if o.N != 4 {
				if suspect.Load() {
					beside.Add(1)
				}
				return nil
			}
			beside.Add(others)
			suspect.Store(true)
			defer suspect.Store(false)
			pause := time.NewTimer(50 * time.Millisecond) // gives others the time to join
			defer pause.Stop()
			<-pause.C
			return nil
		})
		runUntil(t, src, c.Run)
		if n := beside.Load(); n != 0 {
			t.Errorf("%d handlers ran beside the suspect", n)
		}
		if n := count(t, db, "SELECT count(*) FROM "+attemptTable(in, db)); n != 0 {
			t.Errorf("%d rows of attempts are left", n)
		}
	})
}

// TestOnlyTheGuiltyIsBuried: ends of the process during which other messages ran too prove
// nothing against a message, however many.
func TestOnlyTheGuiltyIsBuried(t *testing.T) {
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprint("alone ", alone), func(t *testing.T) {
			db, _ := sqlite(t)
			in := inboxDB(t, db, dialect.SQLite)
			m := message(1, "a", "order.placed", order{"a", 1})
			begun(t, db, in, m, quick.MaxAttempts, alone)
			b := membroker.New(nil)
			publish(t, b, m)
			src := source(b, 1)
			c := consumer.New(uncounted{src}, consumer.SQL(db, dialect.SQLite), &quick)
			ran := false
			consumer.Handle(c, "order.placed", func(context.Context, *sql.Tx, order) error { ran = true; return nil })
			runUntil(t, src, c.Run)
			dead, err := in.DeadLetters(t.Context(), db, "", 10)
			if err != nil || ran == alone || (len(dead) == 1) != alone {
				t.Errorf("handled %v, %d dead letters, %v", ran, len(dead), err)
			}
		})
	}
}

// TestShutdownCostsNoAttempt: a handler that is interrupted by the shutdown has not failed.
func TestShutdownCostsNoAttempt(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		publish(t, b, message(1, "a", "order.placed", order{"a", 1}))
		opts := quick
		opts.DrainTimeout = time.Millisecond
		c := consumer.New(uncounted{source(b, 1)}, consumer.SQL(db, dialectOf(in, db)), &opts)
		ctx, cancel := context.WithCancel(t.Context())
		consumer.Handle(c, "order.placed", func(ctx context.Context, _ *sql.Tx, _ order) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		if err := c.Run(ctx); err != nil && !strings.Contains(err.Error(), "did not return") {
			t.Fatal(err)
		}
		// Run waits only for DrainTimeout; the attempt is taken back a moment later.
		until(t, 10*time.Second, "the attempt is taken back", func() bool {
			return count(t, db, "SELECT coalesce(max(attempts), -1) FROM "+attemptTable(in, db)) == 0
		})
	})
}

// TestRefusedAtTheCommit: a violated deferred constraint is the handler's failure, and the
// dead letter names the cause.
func TestRefusedAtTheCommit(t *testing.T) {
	db := openSQL(t, "pgx", postgres18(t))
	in := inboxDB(t, db, dialectOf(nil, db))
	if _, err := db.Exec(`CREATE TABLE customer (id text PRIMARY KEY);
		CREATE TABLE invoice (customer text REFERENCES customer DEFERRABLE INITIALLY DEFERRED)`); err != nil {
		t.Fatal(err)
	}
	b := membroker.New(nil)
	publish(t, b, message(1, "a", "order.placed", order{"nobody", 1}))
	src := source(b, 1)
	c := consumer.New(src, consumer.SQL(db, dialectOf(nil, db)), &quick)
	consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, o order) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO invoice VALUES ($1)", o.ID)
		return err
	})
	runUntil(t, src, c.Run)
	dead, err := in.DeadLetters(t.Context(), db, "", 10)
	if err != nil || len(dead) != 1 || dead[0].Attempts != quick.MaxAttempts || !strings.Contains(dead[0].Cause, "invoice_customer_fkey") {
		t.Errorf("dead letters %+v, %v; want one after %d attempts that names the constraint", dead, err, quick.MaxAttempts)
	}
}
