package promises

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// spoilt is a source that could not decode what it delivers.
type spoilt struct{ *acked }

func (s spoilt) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := s.acked.Receive(ctx, limit)
	for i := range ds {
		ds[i].Err = errors.New("no envelope")
	}
	return ds, err
}

// TestUndecodableStaysUndecodable: a person who retries a record that could not be decoded
// gets it back as a dead letter: no handler sees it, and no policy drops it.
//
// Promises: L
func TestUndecodableStaysUndecodable(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		known, typeless := message(1, "k", "order.placed", order{"x", 1}), message(2, "", "", nil)
		publish(t, b, known, typeless)
		opts := quick
		opts.UnknownType = consumer.Skip
		src := source(b, 2)
		start := func(src broker.Source) *consumer.Consumer[*sql.Tx] {
			c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), &opts)
			consumer.Handle(c, "order.placed", func(context.Context, *sql.Tx, order) error {
				t.Error("the handler ran")
				return nil
			})
			return c
		}
		runUntil(t, src, start(spoilt{src}).Run)
		inTx(t, db, func(tx inbox.Conn) error {
			return errors.Join(in.Revive(t.Context(), tx, known.ID), in.Revive(t.Context(), tx, typeless.ID))
		})
		c := start(source(membroker.New(nil), 1))
		runWhile(t, c.Run, func() bool { s := c.Stats(); return s.Dead+s.Effects+s.Skipped < 2 })
		dead, err := in.DeadLetters(t.Context(), db, "", 10)
		if err != nil || len(dead) != 2 || dead[0].Cause != "no envelope" {
			t.Errorf("dead letters %+v, %v", dead, err)
		}
	})
}

// TestRetriedLetterIsTheMessage: a retried dead letter comes to its handler with its key, of any
// bytes, and its time.
//
// Promises: L
func TestRetriedLetterIsTheMessage(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		m := message(1, "k\xff", "order.placed", order{"x", 1})
		m.Time = time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
		inTx(t, db, func(tx inbox.Conn) error {
			_, err := in.Bury(t.Context(), tx, m, "here", 3, "no")
			return errors.Join(err, in.Revive(t.Context(), tx, m.ID))
		})
		c := consumer.New(source(membroker.New(nil), 1), consumer.SQL(db, dialectOf(in, db)), &quick)
		c.HandleMessage("order.placed", func(_ context.Context, _ *sql.Tx, got postrider.Message) error {
			if got.Key != m.Key || !got.Time.Equal(m.Time) {
				t.Errorf("key %q, time %v", got.Key, got.Time)
			}
			return nil
		})
		runWhile(t, c.Run, func() bool { return c.Stats().Effects < 1 })
	})
}
