package relay

import (
	"context"
	"sync"
	"time"

	"github.com/postrider/postrider/relay/internal/core"
	"github.com/postrider/postrider/store"
)

// loop is one Run: one goroutine steps the engine, workers do the I/O.
type loop struct {
	r      *Relay
	engine *core.Engine
	events chan core.Event
	ended  chan struct{} // closed when nobody reads events any more
	jobs   chan func()
	work   sync.WaitGroup // workers
	ttl    time.Duration

	start    time.Time
	lastMono time.Time
	lastWall time.Time
	timer    *time.Timer
	cancels  map[core.ID]context.CancelFunc // of deliveries in flight
}

// stopGrace is how long an ended Run waits for calls that do not heed their context.
const stopGrace = 2 * time.Second

func newLoop(r *Relay, bootID string) *loop {
	cfg := r.opts.config()
	cfg.BootID, cfg.Store, cfg.Sink = bootID, r.store.Info(), r.sink.Info()
	r.rec.start(cfg.Instance, bootID)
	return &loop{
		r: r, engine: core.New(cfg, seed()), ttl: r.rec.ttl,
		events: make(chan core.Event, 64), jobs: make(chan func()), ended: make(chan struct{}),
		cancels: map[core.ID]context.CancelFunc{},
	}
}

func (lp *loop) run(ctx context.Context) error {
	lp.start = time.Now()
	lp.lastMono, lp.lastWall = lp.start, lp.start.Round(0)
	lp.timer = time.NewTimer(time.Hour)
	defer lp.timer.Stop()
	defer lp.r.rec.stop()
	// Calls outlive ctx: a drain waits for them.
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	info := lp.r.store.Info()
	lp.r.log.Info("relay started", "instance", lp.r.opts.config().Instance, "pipe", info.Pipe, "store", info.Name, "sink", lp.r.sink.Info().Name)
	err := lp.steps(ctx, calls)
	close(lp.ended)
	cancel()
	lp.await()
	if err == nil { // else the caller has the error, and says it
		lp.r.log.Info("relay stopped")
	}
	return err
}

func (lp *loop) steps(ctx, calls context.Context) error {
	done := ctx.Done()
	var ev core.Event = core.Start{}
	for {
		if stopped, err := lp.step(calls, ev); stopped {
			return err
		}
		select {
		case ev = <-lp.events:
		case <-lp.timer.C:
			ev = core.Tick{}
		case <-done:
			done = nil
			ev = core.Drain{}
			lp.r.log.Info("relay drains")
		}
		lp.r.rec.moved(len(lp.cancels), done == nil)
	}
}

func (lp *loop) step(calls context.Context, ev core.Event) (stopped bool, err error) {
	now := time.Now()
	if lp.jumped(now) {
		lp.r.log.Warn("the clocks disagree: every lease is taken as lost")
		if stopped, err = lp.act(calls, lp.engine.Step(now.Sub(lp.start), core.ClockJump{})); stopped {
			return stopped, err
		}
	}
	if d, ok := ev.(core.Delivered); ok {
		if cancel := lp.cancels[d.ID]; cancel != nil {
			cancel()
			delete(lp.cancels, d.ID)
		}
	}
	return lp.act(calls, lp.engine.Step(now.Sub(lp.start), ev))
}

// jumped compares the monotonic with the wall clock since the step before. A
// suspended machine stops the one and not the other.
func (lp *loop) jumped(now time.Time) bool {
	wall := now.Round(0)
	apart := wall.Sub(lp.lastWall) - now.Sub(lp.lastMono)
	lp.lastMono, lp.lastWall = now, wall
	return apart.Abs() > lp.ttl/4
}

func (lp *loop) act(calls context.Context, actions []core.Action) (stopped bool, err error) {
	for _, a := range actions {
		switch a := a.(type) {
		case core.Lease:
			lp.do(func() { lp.lease(calls, a) })
		case core.Read:
			lp.do(func() { lp.read(calls, a) })
		case core.Settle:
			lp.do(func() { lp.settle(calls, a) })
		case core.Wait:
			lp.do(func() { lp.wait(calls, a) })
		case core.Deliver:
			call, cancel := context.WithTimeout(calls, a.Timeout)
			lp.cancels[a.ID] = cancel
			lp.do(func() { lp.deliver(call, a) })
		case core.Cancel:
			if cancel := lp.cancels[a.ID]; cancel != nil {
				cancel()
			}
		case core.Timer:
			lp.timer.Reset(a.At - time.Since(lp.start))
		case core.Notify:
			lp.notify(a.Fact)
		case core.Stopped:
			return true, a.Err
		}
	}
	return false, nil
}

// do runs fn on a worker that has nothing to do, or on a new one. Workers are
// kept because a fresh goroutine grows its stack anew in every call.
func (lp *loop) do(fn func()) {
	select {
	case lp.jobs <- fn:
	default:
		lp.work.Go(func() {
			for {
				fn()
				select {
				case fn = <-lp.jobs:
				case <-lp.ended:
					return
				}
			}
		})
	}
}

func (lp *loop) notify(f core.Fact) {
	lp.r.rec.tell(f)
	lp.r.opts.Observer.tell(f)
	log := lp.r.log
	switch f := f.(type) {
	case core.HealthChanged:
		if f.Down {
			log.Warn("no answer, backing off", "part", f.Part, "error", f.Err)
		} else {
			log.Info("works again", "part", f.Part)
		}
	case core.BrakeChanged:
		if f.On {
			log.Error("destination rejects everything and is held", "destination", f.Destination, "code", f.Code, "rejections", f.Rejections)
		} else {
			log.Info("destination accepts again", "destination", f.Destination)
		}
	case core.PipePaused:
		log.Warn("pipe pauses or goes on", "paused", f.On)
	case core.LanePaused:
		log.Warn("lane pauses or goes on", "lane", f.Lane, "paused", f.On, "captured_keys", f.Keys, "reason", f.Reason)
	case core.HistoryChanged:
		log.Warn("the database has crashed, failed over or been restored: what is not settled is read again", "lanes", f.Lanes)
	case core.LeaseLapsed:
		log.Warn("no heartbeat was answered in time: the lease has run out and nothing is sent until one is",
			"lanes", f.Lanes, "reason", f.Reason, "last_answered_ago", f.Since, "noticed_late_by", f.Late)
	case core.LaneGained:
		log.Debug("lane gained", "lane", f.Lane, "epoch", f.Epoch)
	case core.LaneLost:
		log.Debug("lane lost", "lane", f.Lane, "reason", f.Reason)
	case core.RecordParked:
		if f.Class != "" {
			args := []any{"seq", f.Seq, "lane", int(f.Lane), "state", f.State.String(), "class", f.Class, "code", f.Code}
			if f.State == store.Dead { // a person must act; the brake keeps a broken destination from filling the log
				log.Warn("dead letter", args...)
			} else {
				log.Debug("record parked", args...)
			}
		}
	}
}

// await gives workers a moment to end, so that no goroutine outlives a Run whose
// store and sink heed their contexts.
func (lp *loop) await() {
	idle := make(chan struct{})
	go func() {
		lp.work.Wait()
		close(idle)
	}()
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-idle:
	case <-grace.C:
		lp.r.log.Warn("a call to the store or the sink does not heed its context and was left behind")
	}
}
