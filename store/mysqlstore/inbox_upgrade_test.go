package mysqlstore

import (
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/internal/testserver"
)

// TestInboxUpgrade: tables of version 3 become those of the newest, and a dead letter of
// theirs is retried.
//
// Promises: E
func TestInboxUpgrade(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		e, empty := newInbox(t, server, func(*mysql.Config) {})
		empty(t)
		in, letter := inboxwork.New(dialect.MySQL, "billing", nil), postrider.Message{ID: "one", Topic: "orders", Key: "a", Version: 1}
		do := func(fn func(tx inbox.Conn) error) {
			t.Helper()
			tx, err := e.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(fn(tx), tx.Commit()); err != nil {
				t.Fatal(err)
			}
		}
		do(func(tx inbox.Conn) error {
			_, err := in.Bury(t.Context(), tx, letter, "here", 1, "no")
			return err
		})
		for _, text := range []string{
			"ALTER TABLE postrider_inbox_attempt DROP COLUMN created_at, DROP COLUMN raw_key, DROP COLUMN undecodable",
			"ALTER TABLE postrider_inbox_stash DROP COLUMN raw_key, DROP COLUMN undecodable",
			"DROP TABLE postrider_inbox_batch", "UPDATE postrider_inbox_schema SET version = 3",
		} {
			do(func(tx inbox.Conn) error { _, err := tx.ExecContext(t.Context(), text); return err })
		}
		for range 2 {
			do(func(tx inbox.Conn) error { return in.Migrate(t.Context(), tx) })
		}
		do(func(tx inbox.Conn) error {
			var wait, own int64
			if err := tx.QueryRow(t.Context(), "SELECT @@SESSION.lock_wait_timeout, @@GLOBAL.lock_wait_timeout").Scan(&own, &wait); err != nil || own != wait {
				t.Errorf("the session waits %d s for locks, %v; want %d", own, err, wait)
			}
			return in.Revive(t.Context(), tx, letter.ID)
		})
		do(func(tx inbox.Conn) error {
			s, err := in.DueStashed(t.Context(), tx, "me", 0, nil)
			if err == nil && (s == nil || s.Message.ID != letter.ID) {
				t.Errorf("%+v is due", s)
			}
			return errors.Join(err, in.MarkBatch(t.Context(), tx, "me", 0, nil))
		})
	})
}
