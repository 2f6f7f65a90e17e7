package mysqlstore

import (
	"bytes"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// A settlement succeeds however many records it parks and removes, and whatever a packet of the server
// may hold.
//
// Promises: L, S
func TestASettlementFitsThePackets(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		text := bytes.Repeat([]byte("'\x00\\\"?"), 10)
		t.Run("of the default size", func(t *testing.T) {
			settleMany(t, newOutbox(t, server, 1), 16_000, text, text)
		})
		t.Run("of 256 KiB", func(t *testing.T) {
			small := testserver.StartMySQL(t, server.Version, testserver.WithConfig("max-allowed-packet=256K"))
			// The text of the last record is larger than a packet, and the record is not.
			settleMany(t, newOutbox(t, small, 64), 2_000, text, bytes.Repeat([]byte("\xff\x00\x00"), 50<<10))
		})
	})
}

// settleMany parks records in one settlement, changes them in another one, and removes them.
func settleMany(t *testing.T, db *sql.DB, n int, payload, last []byte) {
	t.Helper()
	s := New(db, nil)
	l := lease(t, s, "a").Lanes[0]
	st := store.Settlement{BootID: "a", Lane: l.Lane, Epoch: l.Epoch, Position: l.Position}
	settle := func(what string) {
		t.Helper()
		st.Delivered = n
		if lost, err := s.Settle(t.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
			t.Fatalf("%s: lost %v, error %v", what, lost, err)
		}
		st.Epoch++
	}
	for i := range n {
		m := postrider.Message{ID: fmt.Sprintf("%036d", i), Topic: "t", Key: fmt.Sprint("k", i), Payload: payload, Headers: map[string]string{"h": "?\"'"}, Time: time.UnixMicro(int64(i))}
		st.Park = append(st.Park, store.Park{Seq: int64(i + 1), Message: m, State: store.Scheduled, DueIn: time.Hour})
	}
	st.Park[n-1].Message.Payload = last
	settle("park")
	for i := range st.Park {
		st.Park[i].State, st.Park[i].DueIn, st.Park[i].Class, st.Park[i].Error = store.Retry, -time.Minute, "rejected", "é"
	}
	settle("park again")
	found, err := s.Office().Admin.Parked(t.Context(), ops.ParkedQuery{State: store.Retry, AfterSeq: int64(n - 1), Limit: 2})
	if err != nil || len(found) != 1 {
		t.Fatalf("%d records behind %d, error %v", len(found), n-1, err)
	}
	if m := found[0].Message; m.ID != st.Park[n-1].Message.ID || !bytes.Equal(m.Payload, last) || m.Headers["h"] != "?\"'" || found[0].Error != "é" || found[0].FirstFailed.IsZero() {
		found[0].Message.Payload = nil
		t.Errorf("the last record has %d bytes of payload, want %d: %+v", len(m.Payload), len(last), found[0])
	}
	for _, p := range st.Park {
		st.Unpark = append(st.Unpark, p.Seq)
	}
	st.Park = nil
	settle("unpark")
	if left, err := list[int](t.Context(), db, `SELECT COUNT(*) FROM postrider_parked`); err != nil || left[0] != 0 {
		t.Errorf("%v records are left, error %v", left, err)
	}
}
