package sqlitestore

import (
	"testing"
	"time"

	"github.com/postrider/postrider/store"
)

// The table checks headers with functions that end a text at a zero byte, which a program that
// counts the end of its strings in writes. One such row must not hold up those of all lanes.
//
// Promises: L, S
func TestHeadersWithAZeroByteAreRead(t *testing.T) {
	pool, s := newOutbox(t, 1)
	for _, headers := range []string{`'{"a": "b"}' || char(0)`, `'{}' || char(0) || 'x'`, `'{"a": "c"}'`} {
		if _, err := pool.Exec(`INSERT INTO postrider_outbox (topic, headers) VALUES ('t', ` + headers + `)`); err != nil {
			t.Fatal(err)
		}
	}
	b, err := s.Read(t.Context(), []store.LaneRead{{MaxRecords: 10}})
	if err != nil {
		t.Fatal(err)
	}
	got := b[0].Messages
	if len(got) != 3 || got[0].Headers["a"] != "b" || len(got[1].Headers) > 0 || got[2].Headers["a"] != "c" {
		t.Errorf("read %+v", got)
	}
}

// SQLite takes any bytes for a text, so a key may be no UTF-8. Its queue is read all the same.
//
// Promises: S
func TestAQueueOfAnyKeyIsRead(t *testing.T) {
	for _, key := range []string{"\xffA", "a\xc3", "ключ", `"\u0041`, "<&>", "\u2028"} {
		pool, s := newOutbox(t, 1)
		if _, err := pool.Exec(`INSERT INTO postrider_outbox (topic, key) VALUES ('t', CAST(? AS TEXT))`, []byte(key)); err != nil {
			t.Fatal(err)
		}
		g, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.Read(t.Context(), []store.LaneRead{{MaxRecords: 10}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Settle(t.Context(), []store.Settlement{{
			BootID: "a", Epoch: g.Lanes[0].Epoch, Position: b[0].Position,
			Park: []store.Park{{Seq: b[0].Meta[0].Seq, Message: b[0].Messages[0], State: store.Retry, Captures: true}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		b, err = s.Read(t.Context(), []store.LaneRead{{MaxRecords: 10, Parked: true, Keys: []string{key}}})
		if err != nil || len(b[0].Messages) != 1 || b[0].Messages[0].Key != key {
			t.Errorf("key %q: read %+v, %v", key, b, err)
		}
	}
}
