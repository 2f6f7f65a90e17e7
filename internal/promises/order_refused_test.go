package promises

import (
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// brokerRefuses sends the broker a payload above its limit.
func brokerRefuses(r *rig, s *server) {
	st := pgstore.New(r.pool, nil)
	r.relay(s.sink(r.T), nil)
	r.bulk(5)
	r.drained(20 * time.Second)

	// The message gets its key's next version; the messages behind it must wait.
	big := strings.Repeat("x", 40_000)
	r.exec(`WITH v AS (UPDATE truth SET version = version + 1 WHERE key = 'k0' RETURNING version)
		INSERT INTO postrider.outbox (topic, key, payload, version)
		SELECT $1, 'k0', convert_to($2, 'UTF8'), version FROM v`, r.topic, big)
	r.bulk(5)
	parked := func(state store.State) []ops.ParkedRecord {
		records, err := st.Office().Admin.Parked(r.Context(), ops.ParkedQuery{State: state})
		if err != nil {
			r.Fatal(err)
		}
		return records
	}
	r.until(10*time.Second, "the dead letter and the messages that wait behind it", func() bool {
		return len(parked(store.Dead)) == 1 && len(parked(store.Waiting)) == 5
	})
	dead := parked(store.Dead)[0]
	if dead.Class != "rejected" || dead.Code != s.tooBig || dead.Error == "" || strings.Contains(dead.Error, "xxxx") {
		r.Errorf("dead with class %q, code %q, error %q; want rejected, %s and a message without payload",
			dead.Class, dead.Code, dead.Error, s.tooBig)
	}
	if dead.Message.Key != "k0" || len(dead.Message.Payload) != len(big) {
		r.Errorf("the dead letter has key %q and %d bytes, want the whole message of k0", dead.Message.Key, len(dead.Message.Payload))
	}
	for _, w := range parked(store.Waiting) {
		if w.Message.Key != "k0" {
			r.Errorf("key %s waits behind another key's dead letter", w.Message.Key)
		}
	}
	// Other keys, even of the same lane, have continued.
	r.until(10*time.Second, "the other keys flow", func() bool {
		return r.number(`SELECT count(*) FROM postrider.messages WHERE state = 'Sent'`) == manyKeys*5+(manyKeys-1)*5
	})

	if _, err := st.Office().Admin.Request(r.Context(), store.Act{Kind: store.ActDiscard, Seq: dead.Seq, Actor: "test", Reason: "too large"}); err != nil {
		r.Fatal(err)
	}
	r.drained(10 * time.Second)
	r.nothingParked()
	if n := r.brokerDown(); n > r.slips() {
		r.Errorf("one refused payload was mistaken for an outage:\n%s", r.said)
	}

	// For the count, insert the discarded message at its place.
	arrived := s.read(r.T, r.topic)
	at := slices.Index(arrived, "k0:5")
	r.atMost(r.check(slices.Insert(arrived, at+1, "k0:6")), 0)
}
