package pgstore_test

import (
	"testing"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// Everything that people do is done by the admin's role and carried out by the
// relay's; with no relay alive the admin's does both. The viewer's role only reads.
func TestRolesAct(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		pools := d.roles()
		person, reader := d.storeAs(pools["admin"]), d.storeAs(pools["reader"])
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', g::text FROM generate_series(1, 3) g`)
		o.want("1", "2", "3")
		if _, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: o.boot, TTL: time.Minute, Leave: true}); err != nil {
			t.Fatal(err)
		}
		replay := ops.Order{Kind: store.ActReplay, Match: ops.Match{Key: "k"}, Actor: "me", Reason: "test"}
		if plan, err := person.Office().Orders.PlanOrder(t.Context(), replay); err != nil || plan.Records != 3 {
			t.Errorf("plan: %+v, %v", plan, err)
		}
		_, _, err := reader.Office().Orders.Order(t.Context(), replay)
		wantIs(t, err, store.ErrUnusable)
		erase := ops.EraseRequest{EraseQuery: ops.EraseQuery{Key: "k"}, Actor: "me", Reason: "test"}
		_, err = reader.Office().Eraser.Erase(t.Context(), erase, 10)
		wantIs(t, err, store.ErrUnusable)
		id, _, err := person.Office().Orders.Order(t.Context(), replay)
		if err != nil {
			t.Fatal(err)
		}
		relay := &owner{db: d, store: d.storeAs(pools["relay"]), boot: "r", page: 10}
		relay.lease()
		g := mustLease(t, relay.store, store.LeaseRequest{BootID: "r", TTL: time.Minute})
		for _, r := range g.Requests {
			lost, err := relay.store.Settle(t.Context(), []store.Settlement{{BootID: "r", Lane: r.Lane, Epoch: relay.grant[r.Lane].Epoch, Requests: []int64{r.ID}}})
			if err != nil || len(lost) > 0 {
				t.Errorf("carry out %+v: lost %v, %v", r, lost, err)
			}
		}
		if n := d.count(`SELECT count(*) FROM box.parked WHERE state = 'scheduled'`); n != 3 {
			t.Errorf("%d records will be sent again, want 3", n)
		}
		if _, err := relay.store.Lease(t.Context(), store.LeaseRequest{BootID: "r", TTL: time.Minute, Leave: true}); err != nil {
			t.Fatal(err)
		}
		d.exec(`UPDATE box.parked SET state = 'dead' WHERE seq = 1`) // others are not discarded
		results, err := admin.Execute(t.Context(), person, person.Office().Admin, []store.Act{{Kind: store.ActDiscard, Seq: 1, Actor: "me"}}, nil)
		if err != nil || results[0].Result != "done" {
			t.Errorf("discard: %+v, %v", results, err)
		}
		stop := store.SetStop{Destination: "shop", Actor: "me", Reason: "test"}
		_, err = reader.Office().Stops.SetStop(t.Context(), stop)
		wantIs(t, err, store.ErrUnusable)
		if on, err := relay.store.Office().Stops.SetStop(t.Context(), stop); err != nil || !on {
			t.Errorf("the relay stops a destination: %v, %v", on, err)
		}
		stop.Resume = true
		if off, err := person.Office().Stops.SetStop(t.Context(), stop); err != nil || !off {
			t.Errorf("a person resumes it: %v, %v", off, err)
		}
		if err := person.Office().Orders.CancelOrder(t.Context(), id, "me", "test"); err != nil {
			t.Logf("the order had ended: %v", err)
		}
		if _, err := person.Office().Eraser.Erase(t.Context(), erase, 10); err != nil {
			t.Errorf("erase: %v", err)
		}
		for who, s := range map[string]*pgstore.Store{"admin": person, "reader": reader, "relay": relay.store} {
			if _, err := s.Office().Doctor.Examine(t.Context(), ops.ExamineRequest{Only: []string{"moved"}}); err != nil {
				t.Errorf("%s examines: %v", who, err)
			}
			if entries, err := s.Office().Journal.Entries(t.Context(), ops.JournalQuery{}); err != nil || len(entries) == 0 {
				t.Errorf("%s reads %d entries of the journal: %v", who, len(entries), err)
			}
		}
		if _, err := reader.Office().Eraser.Erasable(t.Context(), ops.EraseQuery{Key: "k"}); err != nil {
			t.Errorf("the reader counts: %v", err)
		}
	})
}
