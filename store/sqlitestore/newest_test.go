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
