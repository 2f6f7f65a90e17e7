package promises

import (
	"database/sql"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// lapsing returns a consumer that handles only "stock.changed".
func lapsing(db *sql.DB, in *inboxwork.Inbox, src *acked, opts consumer.Options) *consumer.Consumer[*sql.Tx] {
	c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), &opts)
	var wrong atomic.Int32
	consumer.Handle(c, "stock.changed", applying(func(int, int) bool { return true }, &wrong, nil))
	return c
}

// TestUnknownTypeIsSkipped: a message of an unknown type is acknowledged and leaves no
// rows. In an ordered topic its version counts as applied.
func TestUnknownTypeIsSkipped(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		for _, order := range []inbox.Order{inbox.AnyOrder, inbox.Latest, inbox.Contiguous} {
			t.Run(order.String(), func(t *testing.T) {
				b := membroker.New(nil)
				var msgs []postrider.Message
				for v := range 4 {
					m := versioned(0, v+1)
					m.Key, m.ID = order.String(), message(1000*int(order)+v, "", "", nil).ID
					msgs = append(msgs, m)
				}
				msgs[1].Type = "stock.counted"
				publish(t, b, msgs...)
				src := source(b, len(msgs))
				opts := *patient(order)
				opts.UnknownType = consumer.Skip
				c := lapsing(db, in, src, opts)
				if _, err := db.Exec("DELETE FROM effect"); err != nil {
					t.Fatal(err)
				}
				runUntil(t, src, c.Run)
				if got := effects(t, db, "k0"); !slices.Equal(got, []int{1, 3, 4}) {
					t.Errorf("effects %v", got)
				}
				if s := c.Stats(); s.Skipped != 1 || s.Effects != 3 || s.Dead != 0 {
					t.Errorf("%+v", s)
				}
				if n := count(t, db, "SELECT count(*) FROM "+attemptTable(in, db)); n != 0 {
					t.Errorf("%d rows of attempts are left", n)
				}
			})
		}
	})
}

// TestUnknownTypeFails: a message of an unknown type is tried MaxAttempts times, in which a
// newer version of the program may take it; then it is dead.
//
// Promises: S
func TestUnknownTypeFails(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		lost := message(1, "a", "order.lost", nil)
		publish(t, b, lost, message(2, "b", "stock.changed", order{"b", 1}))
		src := source(b, 2)
		opts := quick
		opts.UnknownType = consumer.Fail
		c := lapsing(db, in, src, opts)
		runUntil(t, src, c.Run)
		letters, err := in.DeadLetters(t.Context(), db, "", 10)
		if err != nil || len(letters) != 1 || letters[0].Message.ID != lost.ID || letters[0].Attempts != quick.MaxAttempts || letters[0].Cause != "no handler for the type" {
			t.Errorf("dead letters %+v, %v", letters, err)
		}
		if s := c.Stats(); s.Retries != int64(quick.MaxAttempts-1) || s.Effects != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestRevivedIsSkipped: a dead letter that is retried while its type is skipped is removed
// from the database, once.
//
// Promises: S
func TestRevivedIsSkipped(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		lost := message(1, "a", "order.lost", nil)
		publish(t, b, lost)
		src := source(b, 1)
		runUntil(t, src, lapsing(db, in, src, quick).Run)
		inTx(t, db, func(tx inbox.Conn) error { return in.Revive(t.Context(), tx, lost.ID) })
		opts := quick
		opts.UnknownType = consumer.Skip
		c := lapsing(db, in, source(b, 1), opts)
		stash := "SELECT count(*) FROM " + table(in, db, "stash")
		runWhile(t, c.Run, func() bool { return c.Stats().Skipped == 0 || count(t, db, stash) > 0 })
		if s := c.Stats(); s.Skipped != 1 || s.Effects != 0 {
			t.Errorf("%+v", s)
		}
	})
}
