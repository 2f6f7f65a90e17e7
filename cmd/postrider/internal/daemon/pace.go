package daemon

import (
	"runtime"
	"runtime/debug"
	"time"
)

// How far the heap may grow between two collections, in percent. What a relay
// holds is short-lived: collecting it less often spares a busy one up to a tenth of
// its CPU, and keeps 4 MiB more of an idle one. With a hundred percent a relay
// in a backlog took 6 MiB more, and its process more than 64.
const (
	gcIdle = 50
	gcBusy = 70
	// gcBusyRate is from how many messages in a second on a relay is busy.
	gcBusyRate = 100
)

// A relay that needs less than half of a core runs on one processor: with a
// second one every answer from the network wakes another thread, which finds
// nothing to do. That is a fifth to a third of the CPU of a relay that polls.
const (
	procsMore = 0.5 // of a core: from here on all processors
	procsLess = 0.3
)

// The pages of the program are given back when everything is open, so that a backlog finds
// the room, and again settledAfter looks later, when a relay has used once what it continues
// using. A third time gains nothing: the same pages return.
const settledAfter = 5

// paceEvery is how often the load is looked at. A burst that one processor is
// not enough for waits as long for the others.
const paceEvery = time.Second

// pacer fits the Go runtime to what a relay does. What its user has chosen by the
// environment stays.
type pacer struct {
	delivered func() int64         // messages so far; nil: the collector stays as it is
	used      func() time.Duration // CPU time of the process so far; nil: the processors stay

	release func() // gives the pages of the program back that nothing uses

	gc        int
	single    bool
	lastCount int64
	lastUsed  time.Duration
}

// newPacer looks at the environment for what may be changed.
func newPacer(lookup func(string) (string, bool), delivered func() int64) *pacer {
	p := &pacer{release: releasePages}
	if _, chosen := lookup("GOGC"); !chosen {
		p.delivered = delivered
	}
	if _, chosen := lookup("GOMAXPROCS"); !chosen && runtime.GOMAXPROCS(0) > 1 {
		p.used = cpuTime
	}
	return p
}

// start adapts to the load until the returned function is called, which also
// restores what was set before.
func (p *pacer) start() (stop func()) {
	before := 0
	if p.delivered != nil {
		p.gc, p.lastCount = gcIdle, p.delivered()
		before = debug.SetGCPercent(p.gc)
	}
	if p.used != nil {
		p.lastUsed = p.used()
	}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		p.release()
		ticker := time.NewTicker(paceEvery)
		defer ticker.Stop()
		for n := 1; ; n++ {
			select {
			case <-ended:
				return
			case <-ticker.C:
				p.collector()
				p.processors()
			}
			if n == settledAfter {
				p.release()
			}
		}
	}()
	return func() {
		close(ended)
		<-done
		if p.delivered != nil {
			debug.SetGCPercent(before)
		}
		if p.single {
			runtime.SetDefaultGOMAXPROCS()
		}
	}
}

// collector and processors compare with the look before. Each change stops the
// world, so only changes are made.
func (p *pacer) collector() {
	if p.delivered == nil {
		return
	}
	count, gc := p.delivered(), gcIdle
	if count-p.lastCount >= gcBusyRate*int64(paceEvery/time.Second) {
		gc = gcBusy
	}
	p.lastCount = count
	if gc != p.gc {
		p.gc = gc
		debug.SetGCPercent(gc)
	}
}

func (p *pacer) processors() {
	if p.used == nil {
		return
	}
	used := p.used()
	share := (used - p.lastUsed).Seconds() / paceEvery.Seconds()
	p.lastUsed = used
	switch {
	case p.single && share >= procsMore:
		p.single = false
		runtime.SetDefaultGOMAXPROCS()
	case !p.single && share < procsLess:
		p.single = true
		runtime.GOMAXPROCS(1)
	}
}
