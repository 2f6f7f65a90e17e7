package promises

import (
	"context"
	"sync/atomic"
	"time"
)

// starved begins to measure the time for which the machine gives this process and the
// database no CPU. stop returns the sum.
func (r *rig) starved() (stop func() time.Duration) {
	before := r.waited()
	return func() time.Duration { return r.waited() - before }
}

// slips returns the number of outages that starvation may have caused in this test: a
// call or heartbeat that times out has waited for at least a second. It is 0 on a machine
// that is not starved.
func (r *rig) slips() int { return int(r.waited() / time.Second) }

// lapses returns the number of leases, or replies to settlements, that relays lost to
// starvation.
func (r *rig) lapses() int { return min(r.slips(), r.said.with(lapsed)+r.said.count(storeDown)) }

// meter measures the time for which the machine gives this process and the database no
// CPU, until the test ends.
//
// It repeats a pause and an empty query, which take a few milliseconds on idle cores. Any
// longer time was spent waiting for CPU, by this process, which also has the embedded
// relays, or by the database. A takeover needs about twenty such waits in sequence, and
// the meter makes hundreds in the same time. A bound that is extended by the sum is
// therefore never too strict. On a machine that is not starved the sum is zero.
func (r *rig) meter() func() time.Duration {
	const (
		every = 5 * time.Millisecond
		usual = time.Millisecond // for an empty query and a slightly late timer
	)
	ctx, cancel := context.WithCancel(r.Context())
	var sum atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTimer(every)
		defer tick.Stop()
		for from := time.Now(); ; from = time.Now() {
			tick.Reset(every)
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if _, err := r.pool.Exec(ctx, `SELECT`); err == nil { // otherwise the test has stopped the database
				sum.Add(int64(max(0, time.Since(from)-every-usual)))
			}
		}
	}()
	r.Cleanup(func() { cancel(); <-ended })
	return func() time.Duration { return time.Duration(sum.Load()) }
}
