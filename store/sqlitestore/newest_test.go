package sqlitestore

import (
	"testing"
	"time"
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
	want := func(what string, capped bool, least, most time.Duration) {
		t.Helper()
		got, err := New(pool, &Options{CountLimit: 10}).Office().Admin.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if l := got.Lanes[0]; got.LagCapped != capped || l.LagCapped != capped || got.Lag != l.Lag || l.Lag < least || l.Lag > most {
			t.Errorf("%s: lag %v, capped %v; lane %+v", what, got.Lag, got.LagCapped, l)
		}
	}
	for range 10 {
		c.exec(`INSERT INTO postrider_outbox (topic, not_before, created_at) VALUES ('t', ?, ?)`, time.Now().Add(24*time.Hour).UnixMicro(), time.Now().Add(-3*time.Hour).UnixMicro())
	}
	want("ten scheduled messages", false, 0, 0)
	c.exec(`INSERT INTO postrider_outbox (topic, created_at) VALUES ('t', ?)`, time.Now().Add(-2*time.Hour).UnixMicro())
	want("one behind them", true, 2*time.Hour, 150*time.Minute)
	c.exec(`DELETE FROM postrider_outbox WHERE seq = 1`)
	want("nine scheduled ones and another", false, 2*time.Hour, 150*time.Minute)
}
