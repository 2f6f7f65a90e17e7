package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/sessions"
	"github.com/postrider/postrider/store/ops"
)

// connection is one session and its id.
func connection(t *testing.T, db *sql.DB) (conn *sql.Conn, id int64) {
	t.Helper()
	conn, err := db.Conn(t.Context())
	if err == nil {
		err = conn.QueryRowContext(t.Context(), `SELECT CONNECTION_ID()`).Scan(&id)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, id
}

// A relay that waits for a statement says which, and how to end it, and so does the doctor.
//
// Promises: G
func TestTheStatementThatHoldsGapsIsNamed(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		const most = mostOpen + 1000
		db := newOutbox(t, server, 2)
		sleeper, id := connection(t, db)
		ended := make(chan error, 1)
		go func() {
			_, err := sleeper.ExecContext(t.Context(), `DO SLEEP(300), 'a payload'`)
			ended <- err
		}()
		s := New(db, nil)
		waitFor(t, "the statement is old, and older than those of other tests", func() bool {
			found, err := sessions.Oldest(t.Context(), db)
			return err == nil && found.ID == id && found.Age() >= patience+slack
		})
		for from := 0; from < most; from += 1000 { // every second number is missing
			_, err := db.ExecContext(t.Context(), fmt.Sprintf(`INSERT INTO postrider_outbox (seq, topic) WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 1000)
				SELECT (i + %d) * 2, 't' FROM r`, from))
			if err != nil {
				t.Fatal(err)
			}
		}
		g := lease(t, s, "a")
		var got []int64
		var err error
		for reads := 0; err == nil && reads < 100; reads++ {
			var more []int64
			more, err = tryCarry(t, s, "a", &g)
			got = append(got, more...)
		}
		kill := fmt.Sprintf("KILL QUERY %d", id)
		var unusable *store.UnusableError
		if !errors.As(err, &unusable) || !unusable.Passing || !strings.Contains(err.Error(), fmt.Sprintf("a statement of connection %d (root@", id)) ||
			!strings.Contains(unusable.Fix, kill) || strings.Contains(err.Error(), "payload") {
			t.Errorf("after %d rows the relay says: %v", len(got), err)
		}
		if st, err := s.Office().Admin.Status(t.Context()); err != nil || len(st.Alarms) != 1 || !strings.Contains(st.Alarms[0], kill) {
			t.Errorf("alarms %q, error %v", st.Alarms, err)
		}
		found, err := s.Office().Doctor.Examine(t.Context(), ops.ExamineRequest{Only: []string{"transactions"}, Limits: ops.Limits{Transaction: time.Second}})
		if err != nil || len(found) == 0 || len(found[0].SQL) != 1 || found[0].SQL[0] != kill || strings.Contains(found[0].What, "payload") {
			t.Errorf("the doctor finds %+v, error %v", found, err)
		}
		if _, err := db.ExecContext(t.Context(), kill); err != nil {
			t.Fatal(err)
		}
		<-ended
		s.born = s.born.Add(-2 * patience) // the clock of this store alone
		for reads := 0; len(got) < most && reads < 100; reads++ {
			got = append(got, carry(t, s, "a", &g)...)
		}
		if len(got) != most {
			t.Errorf("%d of %d rows came after %s", len(got), most, kill)
		}
	})
}

// Numbers of a transaction that is open are kept without a statement that runs.
func TestTheTransactionThatHoldsGapsIsNamed(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 2)
		says := func(what string, words ...string) {
			t.Helper()
			awaits(t, what, 300*time.Millisecond, func() bool {
				text := sessions.TooMany(t.Context(), db, holes.Set{{First: 7, Last: 7}}, patience+slack).Error()
				for _, word := range words {
					if !strings.Contains(text, word) {
						return false
					}
				}
				return true
			})
		}
		says("nothing is old", "1,300 gaps a second")
		conn, id := connection(t, db)
		tx, err := conn.BeginTx(t.Context(), nil)
		if err == nil {
			_, err = tx.ExecContext(t.Context(), insert)
		}
		if err != nil {
			t.Fatal(err)
		}
		says("the transaction is named", fmt.Sprintf("a transaction of connection %d (root@", id), fmt.Sprintf("KILL %d", id))
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("'of %d'", id)
		raw, _ := connection(t, db)
		for _, query := range []string{"XA START " + name, insert, "XA END " + name, "XA PREPARE " + name} {
			if _, err := raw.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		_ = raw.Raw(func(any) error { return driver.ErrBadConn }) // the pool ends it
		t.Cleanup(func() { _, _ = db.ExecContext(context.WithoutCancel(t.Context()), "XA ROLLBACK "+name) })
		says("the prepared transaction is named", "prepared XA transaction", "XA RECOVER")
	})
}
