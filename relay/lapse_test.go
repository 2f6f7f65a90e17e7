package relay_test

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/memstore"
)

// TestALapseThatLetNobodyInIsSeenAndCostsNothing disconnects the store for longer than the
// lease, while messages are acknowledged and not settled.
func TestALapseThatLetNobodyInIsSeenAndCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(nil)
		st := &shaky{Store: mem}
		b := membroker.New(nil)
		next := map[string]int64{}
		var log lines
		r := relay.New(st, b.Sink(), &relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		stop := start(t, r)
		time.Sleep(time.Second)
		enqueue(t, mem, 40, 20, next)
		time.Sleep(200 * time.Millisecond)
		if s := r.Stats(); s.Delivered != 40 || s.Settled != 0 {
			t.Fatalf("%d delivered, %d settled; the test wants all and none", s.Delivered, s.Settled)
		}
		st.down.Store(true)
		time.Sleep(time.Minute)
		if s := r.Stats(); len(s.Lanes) != 0 {
			t.Errorf("%d lanes are shown as held without a lease", len(s.Lanes))
		}
		st.down.Store(false)
		time.Sleep(20 * time.Second)
		if duplicates := checkLog(t, b, "orders", next); duplicates > 0 {
			t.Errorf("%d duplicates, nobody else had the lanes", duplicates)
		}
		stop()
		if s := r.Stats(); s.Settled != 40 || s.LeaseLapses != 1 || s.LanesLost != 0 {
			t.Errorf("settled %d, lapses %d, lanes lost %d; want 40, 1, 0", s.Settled, s.LeaseLapses, s.LanesLost)
		}
		// The outage is logged once: its lapse is not logged again.
		if n, down := log.count("lease lapsed"), log.count("database unreachable"); n != 0 || down != 1 {
			t.Errorf("%d lines say that the lease ran out, %d that the store is down; want 0 and 1:\n%s", n, down, log.buf.String())
		}
	})
}
