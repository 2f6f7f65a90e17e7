package chaos

import (
	"context"
	"time"
)

// starved starts to measure how long the machine keeps this process and the
// database from their turns, and returns what ends it with the sum.
//
// It does again and again what takes a few milliseconds when nobody else wants
// the cores: a pause and a query of nothing. Whatever it takes beyond that was
// spent waiting for a turn, by this process, where the embedded relays live
// too, or by the database. A relay that takes over needs some twenty such turns
// in a row, the meter takes hundreds in the same time: a bound on the relay that
// is stretched by the sum is never too strict, and on a machine that is not
// starved the sum is zero and the bound is what it says.
func (r *rig) starved() (stop func() time.Duration) {
	r.Helper()
	const (
		every = 5 * time.Millisecond
		usual = time.Millisecond // for a query of nothing and a timer that is a little late
	)
	conn, err := r.pool.Acquire(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.Context())
	sum := make(chan time.Duration, 1)
	go func() {
		defer conn.Release()
		var waited time.Duration
		tick := time.NewTimer(every)
		defer tick.Stop()
		for from := time.Now(); ; from = time.Now() {
			tick.Reset(every)
			select {
			case <-tick.C:
			case <-ctx.Done():
				sum <- waited
				return
			}
			_, err := conn.Exec(ctx, `SELECT`)
			if err == nil {
				waited += max(0, time.Since(from)-every-usual)
			}
		}
	}()
	return func() time.Duration { cancel(); return <-sum }
}
