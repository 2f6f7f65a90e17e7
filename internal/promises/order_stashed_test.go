package promises

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// TestARedeliveryOfAStashedMessageKeepsItsAttempts: a message waits in the stash, has failed there or is being tried
// by another process, and its source delivers it again. That delivery is acknowledged at once, and changes no attempt:
// otherwise a message that ends its process each time would never be a dead letter.
//
// Promises: S
func TestARedeliveryOfAStashedMessageKeepsItsAttempts(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		for k, state := range []string{"failed", "failed, due in an hour", "running"} {
			t.Run(state, func(t *testing.T) {
				m, try, delay := versioned(k, 2), inboxwork.Try{Origin: "t@2", Owner: "another"}, time.Duration(0)
				if k == 1 {
					delay = time.Hour
				}
				inTx(t, db, func(tx inbox.Conn) error {
					_, claim := in.Claim(t.Context(), tx, m)
					_, _, guard := in.Guard(t.Context(), tx, m, inbox.Contiguous, "t@2")
					_, failed := in.FailAttempt(t.Context(), tx, m, "t@2", false, 0, "no")
					return errors.Join(claim, guard, failed)
				})
				inTx(t, db, func(tx inbox.Conn) error {
					_, err := in.BeginAttempt(t.Context(), tx, m, try)
					if k < 2 {
						_, failed := in.FailAttempt(t.Context(), tx, m, "t@2", true, delay, "no")
						return errors.Join(err, failed)
					}
					return err
				})
				b := membroker.New(nil)
				publish(t, b, m)
				src := source(b, 1)
				c := consumer.New(uncounted{src}, consumer.SQL(db, dialectOf(in, db)), patient(inbox.Contiguous))
				c.HandleMessage("stock.changed", func(context.Context, *sql.Tx, postrider.Message) error { return errors.New("it is not its turn") })
				runUntil(t, src, c.Run)
				inTx(t, db, func(tx inbox.Conn) error {
					known, look := in.Look(t.Context(), tx, m.ID)
					if known.Attempts != 2 || known.Stashed != 2 {
						t.Errorf("%d attempts of version %d in the stash, want 2 of 2", known.Attempts, known.Stashed)
					}
					try.Owner = "a third"
					next, begin := in.BeginAttempt(t.Context(), tx, m, try)
					if next.Orphan != (k == 2) || (next.Wait > 0) != (k == 1) {
						t.Errorf("the next try is answered %+v", next)
					}
					return errors.Join(look, begin)
				})
				if s := c.Stats(); s.Duplicates != 1 {
					t.Errorf("stats %+v, want one duplicate", s)
				}
			})
		}
	})
}
