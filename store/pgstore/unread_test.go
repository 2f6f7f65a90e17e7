package pgstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// A lane whose view is never read in time keeps no other lane from its worker, requests of people are
// carried out there all the same, and the instance names it.
//
// Promises: S, C
func TestALaneWithoutItsViewIsRepairable(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		const lanes, slow = 8, store.Lane(0) // the first one that a heartbeat would try
		d := fresh(t, version, lanes)
		before := d.owner("before")
		records := d.parkInEach(before)
		const settled = `SELECT pos FROM box.lane_cursor WHERE pipe = 'main' AND lane = 0`
		held, waiting := d.count(settled), d.count(`SELECT count(*) FROM box.parked WHERE lane = 0`)
		mustLease(t, before.store, store.LeaseRequest{BootID: "before", TTL: time.Minute, Leave: true})
		// Whatever reads what people have paused in that lane waits for an hour.
		d.exec(`CREATE FUNCTION box.slow() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(3600); RETURN true; END $$`)
		d.exec(`ALTER TABLE box.hold RENAME TO held`)
		d.exec(`CREATE VIEW box.hold AS SELECT * FROM box.held h WHERE h.lane <> 0 OR box.slow()`)
		d.exec(`INSERT INTO box.held (pipe, lane, key) VALUES ('main', 0, 'another')`)

		s, known := d.store("main"), map[store.Lane]int64{}
		beat := func() *store.LaneGrant {
			t.Helper()
			const ttl = 2 * time.Second
			ctx, cancel := context.WithTimeout(t.Context(), ttl)
			defer cancel()
			g, err := s.Lease(ctx, store.LeaseRequest{BootID: "a", Instance: "a", TTL: ttl, Known: known})
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			clear(known)
			for i := range g.Lanes {
				known[g.Lanes[i].Lane] = g.Lanes[i].Epoch
			}
			if i := slices.IndexFunc(g.Lanes, func(l store.LaneGrant) bool { return l.Lane == slow }); i >= 0 {
				return &g.Lanes[i]
			}
			return nil
		}
		for beats := 0; len(known) < lanes-1; beats++ {
			if l := beat(); l != nil || beats == 10 {
				t.Fatalf("after %d heartbeats %d lanes are granted, the slow one: %v", beats+1, len(known), l)
			}
		}
		office := s.Office()
		id, err := office.Admin.Request(t.Context(), store.Act{Kind: store.ActDiscard, Seq: records[slow], Actor: "a", Reason: "r"})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 { // other work of the machine may end one early
			beat()
		}
		acts, err := office.Admin.Acts(t.Context(), id)
		if err != nil || len(acts) != 1 || acts[0].Result != ops.ResultDone {
			t.Errorf("the act is %+v, error %v", acts, err)
		}
		if text := d.text(`SELECT array_to_string(trouble, ' ') FROM box.relay WHERE boot_id = 'a'`); !strings.Contains(text, "lane 0 is not delivered") {
			t.Errorf("the instance's trouble is %q", text)
		}
		// The view is read in time, and the trouble is over.
		d.exec(`CREATE OR REPLACE FUNCTION box.slow() RETURNS boolean LANGUAGE sql RETURN true`)
		switch l := beat(); {
		case l == nil:
			t.Error("the lane is not granted")
		case int64(l.Parked.Records) != waiting-1 || !slices.Contains(l.Parked.Captured, "another") || d.count(settled) != held:
			t.Errorf("the lane is %+v, %d records were there before, its position moves from %d to %d", l, waiting, held, d.count(settled))
		}
		beat()
		if text := d.text(`SELECT array_to_string(trouble, ' ') FROM box.relay WHERE boot_id = 'a'`); text != "" {
			t.Errorf("the instance's trouble is %q", text)
		}
	})
}

// parkInEach sets a record aside in each lane, and returns their numbers.
func (d *db) parkInEach(o *owner) map[store.Lane]int64 {
	d.Helper()
	seqs := map[store.Lane]int64{}
	for i := 0; len(seqs) < d.lanes; i++ {
		p := o.park(string(rune('a'+i)), "m", store.Dead)
		seqs[o.laneOf(p.Seq)] = p.Seq
	}
	return seqs
}
