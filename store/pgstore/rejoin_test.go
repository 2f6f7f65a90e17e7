package pgstore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// An instance that was given up for dead and lives on holds nothing
// of what it held before until it has taken it anew, however many heartbeats
// that lasts: whoever takes the lane may be in the middle of it.
//
// Promises: D
func TestRejoinedInstanceHoldsWhatItTookAnew(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		a, req := d.store("main"), store.LeaseRequest{BootID: "A", TTL: 4 * time.Second}
		before := mustLease(t, a, req).Lanes[0]
		taker := d.begin()
		d.do(taker, `DELETE FROM box.relay WHERE boot_id = 'A'`)
		d.commit(taker)
		taker = d.begin()
		d.do(taker, `INSERT INTO box.progress (pipe, lane, n, owner, pos, low, next_xid, delivered)
			SELECT pipe, lane, n + 1, 'B', pos, low, next_xid, delivered FROM box.progress WHERE lane = $1 AND n = $2`, before.Lane, before.Epoch)
		for i := range 3 {
			g := mustLease(t, a, req)
			if slices.ContainsFunc(g.Lanes, func(l store.LaneGrant) bool { return l.Lane == before.Lane }) || len(g.Lanes) != 3 {
				t.Errorf("heartbeat %d: A has %d lanes of 4, and may have only 3", i+1, len(g.Lanes))
			}
		}
		d.commit(taker)
		g := mustLease(t, a, req)
		if len(g.Lanes) != 4 || g.Lanes[0].Epoch != before.Epoch+2 {
			t.Errorf("with B gone A has %d lanes, the first at epoch %d; want 4 at %d", len(g.Lanes), g.Lanes[0].Epoch, before.Epoch+2)
		}
	})
}

// A person who holds a request's row in a transaction that he left open keeps
// nobody from settling; the request is executed when he has gone.
func TestALockedRequestStopsNobody(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 2)
		st, req := d.store("main"), store.LeaseRequest{BootID: "A", TTL: time.Minute}
		id, err := st.Office().Admin.Request(t.Context(), store.Act{Kind: store.ActPause, Lane: 1, Actor: "ann", Reason: "test"})
		if err != nil {
			t.Fatal(err)
		}
		person := d.begin()
		d.do(person, `SELECT * FROM box.request FOR UPDATE`)
		execute := func() bool {
			g := mustLease(t, st, req)
			if len(g.Requests) != 1 {
				t.Fatalf("%d requests are listed", len(g.Requests))
			}
			var all []store.Settlement
			for _, l := range g.Lanes {
				all = append(all, store.Settlement{BootID: "A", Lane: l.Lane, Epoch: l.Epoch})
			}
			all[1].Requests = []int64{id}
			if lost, err := st.Settle(t.Context(), all); err != nil || len(lost) > 0 {
				t.Fatal(lost, err)
			}
			states, err := st.Office().Admin.Acts(t.Context(), id)
			if err != nil || len(states) != 1 {
				t.Fatal(states, err)
			}
			return states[0].Done
		}
		if execute() {
			t.Error("executed while its row is locked")
		}
		d.commit(person)
		if !execute() {
			t.Error("not executed when the lock is gone")
		}
	})
}

// The session that blocks a settlement is named, with the remedy.
func TestASettlementNamesWhoBlocksIt(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 1)
		st := d.store("main")
		g := mustLease(t, st, store.LeaseRequest{BootID: "A", TTL: 2 * time.Second})
		s := store.Settlement{BootID: "A", Lane: 0, Epoch: g.Lanes[0].Epoch, Park: []store.Park{{Seq: 1, State: store.Dead, Captures: true, Message: postrider.Message{
			ID: "01900000-0000-7000-8000-000000000001", Topic: "t", Key: "k",
		}}}}
		if lost, err := st.Settle(t.Context(), []store.Settlement{s}); err != nil || len(lost) > 0 {
			t.Fatal(lost, err)
		}
		person := d.begin()
		d.do(person, `SET LOCAL application_name = 'psql of ann'`)
		d.do(person, `UPDATE box.parked SET topic = 'u'`)
		d.do(person, `SELECT pg_sleep(0.6)`) // longer than ours wait for a lock
		s.Epoch++
		_, err := st.Settle(t.Context(), []store.Settlement{s})
		if want := fmt.Sprintf("psql of ann, process %d", person.Conn().PgConn().PID()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
		d.commit(person)
		if lost, err := st.Settle(t.Context(), []store.Settlement{s}); err != nil || len(lost) > 0 {
			t.Fatal(lost, err)
		}
	})
}
