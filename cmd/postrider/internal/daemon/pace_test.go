package daemon

import (
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheRuntimeFollowsTheLoad(t *testing.T) {
	t.Cleanup(runtime.SetDefaultGOMAXPROCS)
	runtime.SetDefaultGOMAXPROCS()
	one := runtime.GOMAXPROCS(0) == 1 // a machine with one processor has no more under load
	runtime.GOMAXPROCS(4)
	gcNow := func() int {
		p := debug.SetGCPercent(-1)
		debug.SetGCPercent(p)
		return p
	}
	before := gcNow()
	synctest.Test(t, func(t *testing.T) {
		var delivered, used atomic.Int64
		p := newPacer(func(string) (string, bool) { return "", false }, delivered.Load)
		p.used = func() time.Duration { return time.Duration(used.Load()) }
		stop := p.start()
		for i, step := range []struct {
			messages int64
			cpu      time.Duration
			gc       int
			single   bool
		}{
			{0, 10 * time.Millisecond, gcIdle, true},
			{1000, 490 * time.Millisecond, gcBusy, true},
			{100, 510 * time.Millisecond, gcBusy, false},
			{99, 310 * time.Millisecond, gcIdle, false},
			{0, 290 * time.Millisecond, gcIdle, true},
		} {
			delivered.Add(step.messages)
			used.Add(int64(step.cpu))
			time.Sleep(paceEvery + time.Millisecond)
			synctest.Wait()
			if got := gcNow(); got != step.gc {
				t.Errorf("step %d: %d percent, want %d", i, got, step.gc)
			}
			if got := runtime.GOMAXPROCS(0) == 1; got != (step.single || one) {
				t.Errorf("step %d: one processor: %v, want %v", i, got, step.single)
			}
		}
		stop()
	})
	if got := gcNow(); got != before {
		t.Errorf("%d percent afterwards, want %d", got, before)
	}
	if runtime.NumCPU() > 1 && runtime.GOMAXPROCS(0) == 1 {
		t.Error("one processor afterwards")
	}
}

func TestPagesAreGivenBackTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []int
		p := &pacer{release: func() { at = append(at, int(time.Since(began).Seconds())) }}
		stop := p.start()
		time.Sleep(time.Minute)
		stop()
		if want := []int{0, 5}; !slices.Equal(at, want) {
			t.Errorf("given back after %d s, want %d", at, want)
		}
	})
}

func TestWhatTheEnvironmentSetsStays(t *testing.T) {
	runtime.GOMAXPROCS(4)
	t.Cleanup(runtime.SetDefaultGOMAXPROCS)
	p := newPacer(func(name string) (string, bool) { return "7", name == "GOMAXPROCS" || name == "GOGC" }, func() int64 { return 0 })
	before := debug.SetGCPercent(123)
	defer debug.SetGCPercent(before)
	p.start()()
	if got := debug.SetGCPercent(123); got != 123 || runtime.GOMAXPROCS(0) != 4 || p.used != nil {
		t.Errorf("collector %d, processors %d: they were chosen by the user", got, runtime.GOMAXPROCS(0))
	}
}
