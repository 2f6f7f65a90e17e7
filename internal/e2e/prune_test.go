package e2e

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/outbox"
)

// TestPrune: old claims of this consumer go, in batches, the oldest first; young
// ones, those of dead letters and those of other consumers stay.
func TestPrune(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inbox.Inbox) {
		other := inbox.New(dialect(in, db), "shipping", nil)
		claim := func(in *inbox.Inbox, id string) {
			err := in.Once(t.Context(), db, postrider.Message{ID: id, Topic: "t"}, func(*sql.Tx) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
		}
		for i := range 7 {
			claim(in, fmt.Sprint("old", i))
		}
		claim(other, "old0")
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		_, err = in.Bury(t.Context(), inbox.SQL(tx), postrider.Message{ID: "dead", Topic: "t"}, "here", 1, "why")
		if err := errors.Join(err, tx.Commit()); err != nil {
			t.Fatal(err)
		}
		age, table := "processed_at - interval '40 days'", "postrider.inbox"
		if dialect(in, db) == outbox.SQLite {
			age, table = "processed_at - 40 * 86400000000", "postrider_inbox"
		}
		if _, err := db.Exec("UPDATE " + table + " SET processed_at = " + age); err != nil {
			t.Fatal(err)
		}
		claim(in, "young")

		month := 30 * 24 * time.Hour
		for i, want := range []int64{5, 2, 0} {
			n, err := in.Prune(t.Context(), db, month, 5)
			if err != nil || n != want {
				t.Errorf("call %d removed %d, %v; want %d", i+1, n, err, want)
			}
		}
		left := count(t, db, "SELECT count(*) FROM "+table)
		if mine := count(t, db, "SELECT count(*) FROM "+table+" WHERE consumer = 'billing' AND message_id IN ('young', 'dead')"); left != 3 || mine != 2 {
			t.Errorf("%d claims are left, %d of them the young one and the dead letter's; want 3, 2", left, mine)
		}
		for _, bad := range []struct {
			age   time.Duration
			limit int
			text  string
		}{{inbox.MinRetention - 1, 5, "retention"}, {month, 0, "limit"}} {
			if _, err := in.Prune(t.Context(), db, bad.age, bad.limit); err == nil || !strings.Contains(err.Error(), bad.text) {
				t.Errorf("Prune(%v, %d): %v, want an error about the %s", bad.age, bad.limit, err, bad.text)
			}
		}
	})
}
