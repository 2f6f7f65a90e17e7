package mysqlstore

import (
	"slices"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
)

// removeSent is the statement of docs/mysql.md.
const removeSent = `DELETE FROM postrider_outbox WHERE seq IN (SELECT seq FROM (SELECT seq FROM postrider_messages GROUP BY seq HAVING MIN(state = 'Sent') = 1 ORDER BY seq LIMIT 1000) AS sent)`

// The view tells a row that was passed as a hole from one that was sent.
func TestTheViewKnowsHoles(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		const insert = `INSERT INTO postrider_outbox (topic) VALUES ('t')`
		late, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := late.ExecContext(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
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
