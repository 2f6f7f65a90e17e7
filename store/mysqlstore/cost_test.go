package mysqlstore

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
)

// questions is how many statements the session of a connection has sent.
func questions(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	var name string
	if err := db.QueryRowContext(t.Context(), `SHOW SESSION STATUS LIKE 'Questions'`).Scan(&name, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// statements is how many do sends over the one connection of a pool.
func statements(t *testing.T, db *sql.DB, do func()) int {
	t.Helper()
	before := questions(t, db)
	do()
	return questions(t, db) - before - 1 // the second question counts itself
}

// A relay whose outbox is empty reads and calls Wait in turns. The pause between two looks
// lasts from call to call, until only reads look; news shorten it.
func TestAnIdleOutboxIsAskedSeldom(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, testLanes)
		db.SetMaxOpenConns(1)
		s := New(db, nil)
		wait := func() {
			if err := s.Wait(t.Context(), 40*time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		for s.pause(false) < pollLast { // looks after 0, 1, 3, 7, 15 and 31 ms, and once more
			wait()
		}
		n := statements(t, db, func() {
			for range 10 {
				wait()
			}
		})
		if n > 0 {
			t.Errorf("Wait sent %d statements to an idle outbox, and the reads between look anyway", n)
		}
		if got := s.pause(false); got != pollLast {
			t.Errorf("idle for long, the next pause is %v, want %v", got, pollLast)
		}
		if _, err := db.ExecContext(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.Wait(ctx, time.Hour); err != nil {
			t.Fatal(err)
		}
		if got := s.pause(false); got != pollFirst {
			t.Errorf("after news the next pause is %v, want %v", got, pollFirst)
		}
	})
}

// A relay has one or two heartbeats a second, each of statements one by one.
func TestAHeartbeatHasFewStatements(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 64)
		db.SetMaxOpenConns(1)
		s := New(db, nil)
		known := map[store.Lane]int64{}
		beat := func(trouble ...string) int {
			t.Helper()
			req := store.LeaseRequest{BootID: "a", Instance: "a", TTL: time.Hour, Known: known, Report: store.Report{Trouble: trouble}}
			return statements(t, db, func() {
				g, err := s.Lease(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range g.Lanes {
					known[l.Lane] = l.Epoch
				}
			})
		}
		beat()
		const most = 14
		if n := beat(); n > most {
			t.Errorf("a heartbeat without news has %d statements, want at most %d", n, most)
		}
		if n := beat("of the relay"); n > most+1 {
			t.Errorf("a heartbeat with a report has %d statements, want at most %d", n, most+1)
		}
		var trouble string
		if err := db.QueryRowContext(t.Context(), `SELECT trouble FROM postrider_report WHERE boot_id = 'a'`).Scan(&trouble); err != nil || !strings.Contains(trouble, "of the relay") {
			t.Errorf("the report says %q, %v", trouble, err)
		}
		// Another history of the database, such as a restored one, may lack what was written.
		for _, query := range []string{`DELETE FROM postrider_report`, `UPDATE postrider_info SET epoch = epoch + 1`} {
			if _, err := db.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		beat("of the relay") // notices it
		beat("of the relay")
		if err := db.QueryRowContext(t.Context(), `SELECT trouble FROM postrider_report WHERE boot_id = 'a'`).Scan(&trouble); err != nil {
			t.Errorf("the report after another history: %v", err)
		}
	})
}

// The figures over time ask for the status every ten seconds, also of an outbox of many lanes.
func TestAStatusHasFewStatements(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 64)
		db.SetMaxOpenConns(1)
		s := New(db, nil)
		ask := func(pending int64, most int) {
			t.Helper()
			n := statements(t, db, func() {
				st, err := s.Office().Admin.Status(t.Context())
				if err != nil || st.Pending != pending {
					t.Errorf("%d pending, %v; want %d", st.Pending, err, pending)
				}
			})
			if n > most {
				t.Errorf("a status has %d statements, want at most %d", n, most)
			}
		}
		ask(0, 24)
		if _, err := db.ExecContext(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		ask(1, 26)
	})
}
