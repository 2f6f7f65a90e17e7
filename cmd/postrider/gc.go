package main

import (
	"runtime/debug"
	"time"
)

// How far the heap may grow between two collections, in percent. What a relay
// holds is short-lived: collecting it half as often spares a busy one a tenth of
// its CPU, and keeps 4 MiB more of an idle one.
const (
	gcIdle = 50
	gcBusy = 100
	// gcBusyRate is from how many messages in a second on a relay is busy.
	gcBusyRate = 100
)

func gcPercent(delivered int64, in time.Duration) int {
	if float64(delivered) >= gcBusyRate*in.Seconds() {
		return gcBusy
	}
	return gcIdle
}

// paceGC adapts the garbage collector to what the relay does until the returned
// function is called, which also restores what was set before.
func paceGC(delivered func() int64) (stop func()) {
	now := gcIdle
	before := debug.SetGCPercent(now)
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		const every = 2 * time.Second
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for last := delivered(); ; {
			select {
			case <-ended:
				return
			case <-ticker.C:
			}
			n := delivered()
			if p := gcPercent(n-last, every); p != now { // setting it stops the world
				now = p
				debug.SetGCPercent(p)
			}
			last = n
		}
	}()
	return func() {
		close(ended)
		<-done
		debug.SetGCPercent(before)
	}
}
