package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/storetest"
)

// view reads the view of messages: storetest has a case for each column in each state.
func (e *env) view(ctx context.Context) ([]ops.ViewRow, error) {
	columns := strings.NewReplacer(" key,", " `key`,").Replace(ops.ViewColumns)
	rows, err := e.db.QueryContext(ctx, `SELECT `+columns+` FROM postrider_messages WHERE pipe = 'main' ORDER BY seq`) //nolint:rowserrcheck // ScanView checks it
	if err != nil {
		return nil, err
	}
	return storetest.ScanView(rows, db.Moment)
}

// removeSent is the statement of docs/mysql.md.
const removeSent = `DELETE FROM postrider_outbox WHERE seq IN (SELECT seq FROM (SELECT seq FROM postrider_messages GROUP BY seq HAVING MIN(state = 'Sent') = 1 ORDER BY seq LIMIT 1000) AS sent)`

// The view tells a row that was passed as a hole from one that was sent.
func TestTheViewKnowsHoles(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		late := hole(t, db)
		s := New(db, nil)
		g := lease(t, s, "a")
		b, err := s.Read(t.Context(), []store.LaneRead{{Lane: 0, MaxRecords: 10}})
		if err != nil || len(b[0].Messages) != 1 {
			t.Fatalf("batch %+v, error %v", b, err)
		}
		if lost, err := s.Settle(t.Context(), []store.Settlement{{BootID: "a", Lane: 0, Epoch: g.Lanes[0].Epoch, Position: b[0].Position, Delivered: 1}}); err != nil || len(lost) > 0 {
			t.Fatalf("lost %v, error %v", lost, err)
		}
		if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		states, err := list[string](t.Context(), db, `SELECT state FROM postrider_messages ORDER BY seq`)
		if want := []string{"InProgress", "Sent"}; err != nil || !slices.Equal(states, want) {
			t.Errorf("states %v, want %v; error %v", states, want, err)
		}
		if _, err := db.ExecContext(t.Context(), removeSent); err != nil {
			t.Fatal(err)
		}
		left, err := list[int64](t.Context(), db, `SELECT seq FROM postrider_outbox`)
		if err != nil || !slices.Equal(left, []int64{1}) {
			t.Errorf("rows %v are left, error %v", left, err)
		}
		b, err = New(db, nil).Read(t.Context(), []store.LaneRead{{Lane: 0, MaxRecords: 10}})
		if err != nil || len(b[0].Messages) != 1 || b[0].Meta[0].Seq != 1 {
			t.Errorf("batch %+v, error %v", b, err)
		}
	})
}

// A time of sending is the last settlement of a lane before a minute was noted, also where the
// relay was away since then. It is unknown before the first minute and above an open gap.
func TestWhenItWasSent(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		pool := newOutbox(t, server, 1)
		o := newOwner(t, pool, "a")
		sent := func(name string) sql.NullInt64 {
			t.Helper()
			var at sql.NullInt64
			if err := pool.QueryRowContext(t.Context(), `SELECT sent_at FROM postrider_messages WHERE state = 'Sent' AND type = ?`, name).Scan(&at); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return at
		}
		o.put("k", "a")
		o.step()
		if at := sent("a"); at.Valid {
			t.Errorf("a was sent at %d, but no minute is noted", at.Int64)
		}
		o.exec(`UPDATE postrider_progress SET settled_at = settled_at - 3600000000`) // and the relay was away
		o.minute()
		o.put("k", "b")
		o.step()
		o.minute()
		a, b := sent("a"), sent("b")
		if settled := o.count(`SELECT settled_at FROM postrider_progress`); b.Int64 != settled || !a.Valid || settled-a.Int64 < 3_590_000_000 {
			t.Errorf("a was sent at %v, b at %v, the lane was settled at %d", a, b, settled)
		}
		late, err := pool.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := late.ExecContext(t.Context(), "INSERT INTO postrider_outbox (topic, `key`, type) VALUES ('t', 'k', 'late')"); err != nil {
			t.Fatal(err)
		}
		o.put("k", "above")
		o.step()
		o.minute()
		if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		want(t, "the late one", o.step(), "late")
		o.put("k", "next")
		o.step()
		o.minute()
		for name, there := range map[string]bool{"a": true, "b": true, "late": false, "above": false, "next": true} {
			if at := sent(name); at.Valid != there {
				t.Errorf("%s was sent at %v, and a time is wanted: %v", name, at, there)
			}
		}
		if at := sent("a"); at != a {
			t.Errorf("a was sent at %v, and before at %v", at, a)
		}
		o.exec(`INSERT INTO postrider_unparked (pipe, seq, at) SELECT 'main', MIN(seq), 1 FROM postrider_outbox`)
		if n := o.prune(ops.PruneRequest{}); n != 5 {
			t.Errorf("%d rows removed of 5", n)
		}
		if n := o.count(`SELECT COUNT(*) FROM postrider_times`) + 10*o.count(`SELECT COUNT(*) FROM postrider_unparked`); n != 1 {
			t.Errorf("%d times are left of messages that are gone, want the last minute", n)
		}
		o.put("k", "before the upgrade")
		o.step()
		o.exec(`DELETE FROM postrider_times`)
		o.minute()
		if at := sent("before the upgrade"); at.Valid {
			t.Errorf("a message that was sent before the first minute has a time: %v", at)
		}
	})
}

// Where none of the messages that are counted is due, the lag is an upper bound, and is marked as one.
func TestLagBehindWhatIsCounted(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		pool := newOutbox(t, server, 1)
		o := newOwner(t, pool, "a")
		storetest.LagBound(t, New(pool, &Options{CountLimit: 10}).Office().Admin, func(at, notBefore time.Time) {
			o.exec(`INSERT INTO postrider_outbox (topic, created_at, not_before) VALUES ('t', ?, ?)`, at.UnixMicro(), sql.NullInt64{Int64: notBefore.UnixMicro(), Valid: !notBefore.IsZero()})
		}, func() { o.exec(`DELETE FROM postrider_outbox ORDER BY seq LIMIT 1`) })
	})
}

// Rows in holes are counted before those behind the position. The lag has a bound in both places.
func TestLagBehindHoles(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		pool := newOutbox(t, server, 1)
		o := newOwner(t, pool, "a")
		now := time.Now()
		for i := range 30 {
			age, due := 3*time.Hour, sql.NullInt64{Int64: now.Add(24 * time.Hour).UnixMicro(), Valid: true}
			switch {
			case i == 10:
				age, due = 2*time.Hour, sql.NullInt64{}
			case i > 10:
				age = time.Minute
			}
			o.exec(`INSERT INTO postrider_outbox (topic, created_at, not_before) VALUES ('t', ?, ?)`, now.Add(-age).UnixMicro(), due)
		}
		seqs, err := db.List[int64](t.Context(), pool, `SELECT seq FROM postrider_outbox ORDER BY seq`)
		if err != nil {
			t.Fatal(err)
		}
		o.exec(`UPDATE postrider_progress SET pos = ?, holes = ?`, seqs[4], fmt.Sprintf("[[%d,%d]]", seqs[0], seqs[4]))
		for limit, least := range map[int]time.Duration{10: 2 * time.Hour, 5: 3 * time.Hour} { // behind the holes, and in them
			st, err := New(pool, &Options{CountLimit: limit}).Office().Admin.Status(t.Context())
			if err != nil || !st.LagCapped || st.Lag < least || st.Lag > least+30*time.Minute {
				t.Errorf("limit %d: lag %v, upper bound %v, error %v, want a bound of about %v", limit, st.Lag, st.LagCapped, err, least)
			}
		}
		// A message that is set aside and older is no bound.
		o.exec("INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error, id, topic, `key`, type, payload, content_type, headers, version, schema_version, created_at)"+
			" VALUES ('main', 1, 0, 'retry', 0, 0, 1, '', '', '', '', 't', '', '', '', '', '{}', 0, 0, ?)", now.Add(-5*time.Hour).UnixMicro())
		if st, err := New(pool, &Options{CountLimit: 10}).Office().Admin.Status(t.Context()); err != nil || st.LagCapped || st.Lag < 5*time.Hour {
			t.Errorf("beside an older one that is set aside: lag %v, upper bound %v, error %v", st.Lag, st.LagCapped, err)
		}
	})
}
