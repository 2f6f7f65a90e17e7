package pgstore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
)

// Promise D. An instance that was given up for dead and lives on holds nothing
// of what it held before until it has taken it anew, however many heartbeats
// that lasts: whoever takes the lane may be in the middle of it.
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
