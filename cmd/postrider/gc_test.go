package main

import (
	"runtime/debug"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestGCFollowsTheLoad(t *testing.T) {
	current := func() int {
		p := debug.SetGCPercent(-1)
		debug.SetGCPercent(p)
		return p
	}
	before := current()
	synctest.Test(t, func(t *testing.T) {
		var delivered atomic.Int64
		stop := paceGC(delivered.Load)
		for i, step := range []struct {
			messages int64
			want     int
		}{{0, gcIdle}, {1000, gcBusy}, {200, gcBusy}, {199, gcIdle}, {0, gcIdle}} {
			delivered.Add(step.messages)
			time.Sleep(2*time.Second + time.Millisecond)
			if got := current(); got != step.want {
				t.Errorf("step %d: %d percent, want %d", i, got, step.want)
			}
		}
		stop()
	})
	if got := current(); got != before {
		t.Errorf("%d percent afterwards, want %d", got, before)
	}
}
