package mysqlstore

import (
	"database/sql"
	"encoding/json"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// A message in a hole, or in one that was given up, is not settled; what is found of a message is
// what the view has: its time of sending, and whether it is beyond its relay's reach.
func TestTheFinderAndTheViewAgree(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		pool := newOutbox(t, server, 1)
		o := newOwner(t, pool, "a")
		for _, key := range []string{"one", "hole", "dropped", "above", "sent", "later", "near", "far"} {
			o.put(key, key)
		}
		seqs, err := db.List[int64](t.Context(), pool, `SELECT seq FROM postrider_outbox ORDER BY seq`)
		if err != nil || len(seqs) != 8 {
			t.Fatalf("%d rows, error %v", len(seqs), err)
		}
		o.exec(`UPDATE postrider_progress SET pos = ?, holes = JSON_ARRAY(JSON_ARRAY(?, ?)), owner = 'b'`, seqs[5], seqs[1], seqs[1])
		o.exec(`INSERT INTO postrider_dropped (pipe, low, high, dropped_at) VALUES ('main', ?, ?, 1)`, seqs[2], seqs[2])
		o.exec(`DELETE FROM postrider_relay`)
		o.exec(`INSERT INTO postrider_relay (pipe, boot_id, instance, ttl, alive_until) VALUES ('main', 'b', 'instance b', 600000000, ` + now + ` + 600000000)`)
		o.exec(`DELETE FROM postrider_report`)
		o.exec(`INSERT INTO postrider_report (pipe, boot_id, reach, trouble, held) VALUES ('main', 'b', 3, '[]', '[]')`)
		o.exec(`DELETE FROM postrider_times`)
		var times db.Times
		for i, stand := range []db.Stand{{Floor: seqs[0], Top: seqs[0]}, {Floor: seqs[2], Top: seqs[3]}, {Floor: seqs[5], Top: seqs[5]}} {
			next, low, _ := times.Next([]db.Stand{stand})
			o.exec(`INSERT INTO postrider_times (pipe, at, sent, high, low, lanes) VALUES ('main', ?, ?, ?, ?, ?)`, i, (i+1)*1000, next.High, low, next.Lanes)
			times = next
		}
		o.exec(`UPDATE postrider_outbox SET not_before = 5000 WHERE seq = ?`, seqs[5]) // set aside before the table unparked was there
		find := New(pool, nil).Office().Finder
		states := map[string]string{}
		for i, name := range []string{"one", "hole", "dropped", "above", "sent", "later", "near", "far"} {
			var id, state string
			var sent sql.NullInt64
			if err := pool.QueryRowContext(t.Context(), `SELECT id, state, sent_at FROM postrider_messages WHERE type = ?`, name).Scan(&id, &state, &sent); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			life, err := find.Message(t.Context(), ops.MessageQuery{ID: id, At: time.Now()})
			if err != nil || life.Seq != seqs[i] || life.State() != state || !life.SentAt.Equal(db.Moment(sent)) || life.Owner != "instance b" {
				t.Errorf("%s is found as %s, sent at %v: %+v, error %v; the view has %s, sent at %v", name, life.State(), life.SentAt, life, err, state, sent)
			}
			states[name] = state
			if !life.SentAt.IsZero() {
				states[name] += " " + life.SentAt.Format("05.000")
			}
		}
		for name, want := range map[string]string{
			"one": "Sent", "hole": "InProgress", "dropped": "InProgress", "above": "Sent", "sent": "Sent 00.003", "later": "Sent", "near": "InProgress", "far": "Pending",
		} {
			if states[name] != want {
				t.Errorf("%s is %s, want %s", name, states[name], want)
			}
		}
		for key, want := range map[string]int64{"hole": seqs[1], "far": seqs[7], "one": 0} {
			life, err := find.Key(t.Context(), key)
			if err != nil || (life.First == nil) != (want == 0) || life.First != nil && life.First.Seq != want {
				t.Errorf("key %s: first %+v, error %v, want %d", key, life.First, err, want)
			}
		}
		// A heartbeat further ahead than twice its ttl was written before the clock was set back.
		o.exec(`UPDATE postrider_relay SET alive_until = ` + now + ` + 3 * ttl`)
		if n := o.count(`SELECT COUNT(*) FROM postrider_messages WHERE lock_owner IS NOT NULL OR state = 'InProgress'`); n != 0 {
			t.Errorf("%d messages have an owner whose heartbeat is of the future", n)
		}
		filter, err := json.Marshal(store.Filter{Topics: []string{"elsewhere"}})
		if err != nil {
			t.Fatal(err)
		}
		o.exec(`UPDATE postrider_pipe SET filter = ?`, string(filter))
		if life, err := find.Key(t.Context(), "far"); err != nil || life.First != nil {
			t.Errorf("the pipe does not carry %+v, error %v", life.First, err)
		}
	})
}
