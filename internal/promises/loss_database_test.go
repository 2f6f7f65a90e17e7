package promises

import (
	"runtime"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
)

// heap returns the bytes in use after a collection.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// awaitDials waits until the relay has dialled n more times.
func (r *rig) awaitDials(n int64) {
	r.Helper()
	from := r.dials.Load()
	r.until(20*time.Second, "the relay dials", func() bool { return r.dials.Load() >= from+n })
}

func TestDatabaseUnreachable(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		pg := testserver.StartPostgres(t, version)
		r := rigOn(t, pg.URL)
		r.bulk(10)
		do(t, pg.Stop)

		sink := &memory{}
		r.relay(sink, nil)
		r.awaitDials(5)
		if down := r.said.count(storeDown); down != 1 {
			t.Errorf("%d lines while the database was down at the start, want 1:\n%s", down, r.said)
		}
		do(t, pg.Restart)
		r.pool.Reset() // its connections are to the previous server process
		r.drained(20 * time.Second)
		r.saysStore(1, 1)

		do(t, pg.Kill)
		r.awaitDials(2)
		before, routines := heap(), runtime.NumGoroutine()
		r.awaitDials(6)
		if after := heap(); after > before+4<<20 {
			t.Errorf("the heap grew from %d to %d bytes while the database was down", before, after)
		}
		if now := runtime.NumGoroutine(); now > routines+20 {
			t.Errorf("goroutines grew from %d to %d while the database was down", routines, now)
		}
		do(t, pg.Restart)
		r.pool.Reset() // its connections are to the previous server process
		r.bulk(10)
		r.drained(20 * time.Second)
		r.saysStore(2, 2)
		r.atMost(r.check(sink.arrived()), 1)
		r.nothingParked()
	})
}

// turns checks that the two lines alternate, beginning with the first.
func (r *rig) turns(first, second string) {
	r.Helper()
	if !r.said.alternate(first, second) {
		r.Errorf("%q and %q do not alternate:\n%s", first, second, r.said)
	}
}

// saysStore checks that every change of the database's state was logged once, and that
// there were between outages and most outages.
func (r *rig) saysStore(outages, most int) {
	r.Helper()
	r.until(soon, "the relay logs that the store is reachable again", func() bool {
		back := r.said.count(storeBack)
		return back >= outages && back == r.said.count(storeDown)
	})
	r.turns(storeDown, storeBack)
	if n := r.said.count(storeDown); n > most+r.slips() {
		r.Errorf("%d lines about an unreachable store, want %d to %d:\n%s", n, outages, most, r.said)
	}
}

// TestReadOnly makes the database read-only for the relay: messages that cannot be settled
// must not be sent for ever.
func TestReadOnly(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		pg := testserver.StartPostgres(t, version)
		r := rigOn(t, pg.URL)
		sink := &memory{}
		r.relay(sink, nil)
		r.bulk(5)
		r.drained(10 * time.Second)

		r.exec(`ALTER SYSTEM SET default_transaction_read_only = on`)
		r.exec(`SELECT pg_reload_conf()`)
		r.until(soon, "the relay meets the read-only server", func() bool { return r.said.count(storeDown) >= 1 })
		settled := sink.len()
		r.bulk(100)
		// Until the lease has expired, which takes at most 2 s, and longer.
		r.until(10*time.Second, "the lease expires", func() bool {
			return r.number(`SELECT count(*) FROM postrider.relay WHERE alive_until > clock_timestamp()`) == 0
		})
		sent := sink.len() - settled
		if bound := lanes * window; sent > bound {
			t.Errorf("%d messages sent while no settlement was possible, want at most %d", sent, bound)
		}
		r.write(50)
		if now := sink.len() - settled; now != sent {
			t.Errorf("%d messages sent without a lease", now-sent)
		}

		r.exec(`ALTER SYSTEM RESET default_transaction_read_only`)
		r.exec(`SELECT pg_reload_conf()`)
		r.drained(20 * time.Second)
		r.atMost(r.check(sink.arrived()), 1)
		r.nothingParked()
		r.saysStore(1, 1)
	})
}
