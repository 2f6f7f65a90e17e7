package sqlitestore

import (
	"testing"
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
