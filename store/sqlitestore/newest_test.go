package sqlitestore

import (
	"database/sql"
	"testing"
	"time"

	"github.com/postrider/postrider/store/storetest"
)

// The newest messages come with as much of their payloads as is asked for.
func TestNewest(t *testing.T) {
	db, st := newOutbox(t, 4)
	if _, err := db.ExecContext(t.Context(), `INSERT INTO postrider_outbox (topic, key, type, payload) VALUES ('a', 'k', 'x', x'0102030405'), ('b', 'k', 'x', x'0102030405'), ('c', 'k', 'x', x'0102030405')`); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ n, bodies, want, size int }{{10, 100, 3, 15}, {2, 100, 2, 10}, {10, 5, 2, 10}, {10, 1, 1, 5}, {10, 0, 3, 0}} {
		msgs, err := st.Office().Samples.Newest(t.Context(), c.n, c.bodies)
		size := 0
		for _, m := range msgs {
			size += len(m.Payload)
		}
		if err != nil || len(msgs) != c.want || size != c.size || msgs[0].Topic != "c" {
			t.Errorf("%+v: %d messages with %d bytes, %v", c, len(msgs), size, err)
		}
	}
}

// Where none of the messages that are counted is due, a message behind them is taken for due:
// the lag is an upper bound, and marked as one.
func TestLagBehindWhatIsCounted(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	c := carry(t, pool)
	storetest.LagBound(t, New(pool, &Options{CountLimit: 10}).Office().Admin, func(at, notBefore time.Time) {
		c.exec(`INSERT INTO postrider_outbox (topic, created_at, not_before) VALUES ('t', ?, ?)`, at.UnixMicro(), sql.NullInt64{Int64: notBefore.UnixMicro(), Valid: !notBefore.IsZero()})
	}, func() { c.exec(`DELETE FROM postrider_outbox WHERE seq = 1`) })
}

// Parked records are counted up to a bound for each state of the pipe. A lane of which none was
// counted that has some has at least one.
func TestStatusCountsHaveAnEnd(t *testing.T) {
	const limit, lanes = 10, 2
	pool, _ := newOutbox(t, lanes)
	c := carry(t, pool)
	for _, state := range []string{"dead", "scheduled"} {
		// In the first lane one more than is counted, behind them one in the other.
		c.exec(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i <= 51)
			INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error, id, topic, key, type, payload, content_type, headers, version, schema_version, created_at)
			SELECT 'main', i + CASE ?1 WHEN 'dead' THEN 0 ELSE 100 END, i / 52, ?1, 0, 0, 0, '', '', '', i, 't', '', '', x'', '', '{}', 0, 0, 0 FROM n`, state)
	}
	st, err := New(pool, &Options{CountLimit: limit}).Office().Admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const most = 5 * limit
	if !st.Capped || !st.ParkedCapped || st.Parked["dead"] != most || st.Parked["scheduled"] != most || st.Pending != most+1 || st.Lanes[0].Parked != 2*most || st.Lanes[1].Parked != 2 {
		t.Errorf("status: %+v, want %d of each state and one more in the second lane", st, most)
	}
	if st, err = New(pool, &Options{CountLimit: limit + 1}).Office().Admin.Status(t.Context()); err != nil || st.ParkedCapped || st.Parked["dead"] != most+2 {
		t.Errorf("with a higher limit: %+v, %v, want all %d", st, err, most+2)
	}
}
