package promises

import (
	"context"
	"sync/atomic"
	"time"
)

// starved starts to measure how long the machine keeps this process and the
// database from their turns, and returns what says the sum.
func (r *rig) starved() (stop func() time.Duration) {
	before := r.waited()
	return func() time.Duration { return r.waited() - before }
}

// slips is how many outages a relay may rightly have seen in this test although
// nobody made them: a call or a heartbeat that is given up has waited for a second
// at least. On a machine that is not starved there are none.
func (r *rig) slips() int { return int(r.waited() / time.Second) }

// lapses is how often a relay has lost its lease, or the answer to what it had
// settled, because the machine was starved.
func (r *rig) lapses() int { return min(r.slips(), r.said.with(lapsed)+r.said.count(storeDown)) }

// meter measures how long the machine keeps this process and the database from
// their turns, until the test ends.
//
// It does again and again what takes a few milliseconds when nobody else wants
// the cores: a pause and a query of nothing. Whatever it takes beyond that was
// spent waiting for a turn, by this process, where the embedded relays live
// too, or by the database. A relay that takes over needs some twenty such turns
// in a row, the meter takes hundreds in the same time: a bound on the relay that
// is stretched by the sum is never too strict, and on a machine that is not
// starved the sum is zero and the bound is what it says.
func (r *rig) meter() func() time.Duration {
	const (
		every = 5 * time.Millisecond
		usual = time.Millisecond // for a query of nothing and a timer that is a little late
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
			if _, err := r.pool.Exec(ctx, `SELECT`); err == nil { // else the test has stopped the database
				sum.Add(int64(max(0, time.Since(from)-every-usual)))
			}
		}
	}()
	r.Cleanup(func() { cancel(); <-ended })
	return func() time.Duration { return time.Duration(sum.Load()) }
}
