package relay

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/relay/internal/core"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// loop is one Run. The goroutine with an event steps the engine, under mu, and
// makes one of the calls that the engine returns. So polling an idle outbox takes one
// goroutine that sleeps, reads and sleeps again, without waking another.
type loop struct {
	r     *Relay
	calls context.Context // of every call; a drain waits for them
	jobs  chan job
	ended chan struct{}  // closed when the engine takes no more events
	work  sync.WaitGroup // workers
	ttl   time.Duration
	pipe  string // the pipe to deliver
	start time.Time
	timer *time.Timer
	stops *stops

	mu       sync.Mutex // guards what follows
	engine   *core.Engine
	over     bool
	err      error
	draining bool
	lastMono time.Time
	lastWall time.Time
	sink     sinkHealth
	woken    atomic.Pointer[string]         // how the store learned of messages at the last heartbeat
	cancels  map[port.ID]context.CancelFunc // of deliveries in flight
}

// stopGrace is how long an ended Run waits for calls that do not obey their context.
const stopGrace = 2 * time.Second

func newLoop(r *Relay, bootID string) *loop {
	cfg := r.opts.config()
	cfg.BootID, cfg.Store, cfg.Sink = bootID, r.store.Info(), r.sink.Info()
	cfg.MaxMessages = cmp.Or(cfg.MaxMessages, cfg.Sink.Held)
	r.rec.start(cfg.Instance, bootID)
	return &loop{
		r: r, engine: core.New(cfg, seed()), ttl: r.rec.ttl, pipe: cfg.Store.Pipe, stops: newStops(r),
		jobs: make(chan job), ended: make(chan struct{}),
		cancels: map[port.ID]context.CancelFunc{},
	}
}

func (lp *loop) run(ctx context.Context) error {
	lp.start = time.Now()
	lp.lastMono, lp.lastWall = lp.start, lp.start.Round(0)
	lp.timer = time.NewTimer(time.Hour)
	defer lp.timer.Stop()
	defer lp.r.rec.stop()
	var cancel context.CancelFunc
	info := lp.r.store.Info()
	lp.calls, cancel = context.WithCancel(context.WithoutCancel(ctx))
	lp.r.log.Info("relay started", "instance", lp.r.opts.config().Instance, "pipe", info.Pipe, "store", info.Name, "sink", lp.r.sink.Info().Name)
	if ping := lp.r.sink.Info().Ping; ping != nil {
		lp.r.rec.mustAsk()
		lp.work.Go(func() { lp.ping(lp.calls, ping) })
	}
	lp.watch(ctx)
	cancel()
	lp.await()
	if lp.err == nil { // otherwise the caller reports the error
		lp.r.log.Info("relay stopped")
	}
	return lp.err
}

// watch passes events to the engine that answer no call, until it has ended.
func (lp *loop) watch(ctx context.Context) {
	done := ctx.Done()
	var ev port.Event = port.Start{}
	for {
		if c := lp.step(ev); c != nil {
			lp.do(c)
		}
		select {
		case <-lp.ended:
			return
		case <-lp.timer.C:
			ev = port.Tick{}
		case <-done:
			done = nil
			ev = port.Drain{}
			lp.r.log.Info("drain started")
		}
	}
}

// step passes ev to the engine and returns one of the resulting calls, or nil; the
// others go to workers. After the end it does nothing.
func (lp *loop) step(ev port.Event) job {
	lp.mu.Lock()
	defer lp.mu.Unlock()
	if lp.over {
		return nil
	}
	now := time.Now()
	var own job
	if lp.jumped(now) {
		lp.r.log.Warn("clock jumped, leases dropped")
		own = lp.act(lp.engine.Step(now.Sub(lp.start), port.ClockJump{}), nil)
	}
	switch ev := ev.(type) {
	case port.Delivered:
		if cancel := lp.cancels[ev.ID]; cancel != nil {
			cancel()
			delete(lp.cancels, ev.ID)
		}
	case port.Drain:
		lp.draining = true
	}
	if !lp.over {
		own = lp.act(lp.engine.Step(now.Sub(lp.start), ev), own)
	}
	lp.r.rec.moved(len(lp.cancels), lp.draining)
	return own
}

// jumped reports whether the monotonic and the wall clock diverged since the last step. A
// suspended machine stops the former and not the latter.
func (lp *loop) jumped(now time.Time) bool {
	wall := now.Round(0)
	apart := wall.Sub(lp.lastWall) - now.Sub(lp.lastMono)
	lp.lastMono, lp.lastWall = now, wall
	return apart.Abs() > lp.ttl/4
}

// act executes actions that take no time and passes all calls but the last to workers. It
// returns the last call. own is a call that is still to be made.
func (lp *loop) act(actions []port.Action, own job) job {
	for _, a := range actions {
		switch a := a.(type) {
		case port.Cancel:
			if cancel := lp.cancels[a.ID]; cancel != nil {
				cancel()
			}
		case port.Timer:
			lp.timer.Reset(a.At - time.Since(lp.start))
		case port.Notify:
			lp.notify(a.Fact)
		case port.Stopped:
			lp.over, lp.err = true, a.Err
			close(lp.ended)
			return nil
		default:
			if own != nil {
				lp.do(own)
			}
			own = lp.job(a)
		}
	}
	return own
}

// do passes a call to an idle worker, or to a new one. Workers are
// kept because a new goroutine would grow its stack again in every call.
func (lp *loop) do(c job) {
	select {
	case lp.jobs <- c:
	default:
		lp.work.Go(func() { lp.worker(c) })
	}
}

func (lp *loop) worker(c job) {
	for {
		for c != nil {
			c = lp.step(c())
		}
		select {
		case c = <-lp.jobs:
		case <-lp.ended:
			return
		}
	}
}

func (lp *loop) notify(f port.Fact) {
	switch f := f.(type) {
	case port.HealthChanged:
		if f.Part == "sink" {
			lp.sinkIs(f.Down, false, f.Err)
			return
		}
	case port.DeliveryDone:
		if f.Acked > 0 {
			lp.sinkHeard()
		}
	}
	lp.r.rec.tell(f)
	lp.r.opts.Observer.tell(f)
	log := lp.r.log
	switch f := f.(type) {
	case port.HealthChanged:
		healthLine(log, f)
	case port.ReasonChanged:
		log.Warn("outage reason changed", "part", f.Part, "error", f.Err)
	case port.BrakeChanged:
		if f.On {
			log.Error("destination braked", "destination", f.Destination, "code", f.Code, "rejections", f.Rejections)
		} else {
			log.Info("destination released", "destination", f.Destination)
		}
	case port.PipePaused:
		if f.On {
			log.Warn("pipe paused")
		} else {
			log.Warn("pipe resumed")
		}
	case port.LanePaused:
		args := []any{"lane", f.Lane, "captured_keys", f.Keys, "reason", f.Reason}
		if f.On {
			log.Warn("lane paused", args...)
		} else {
			log.Warn("lane resumed", args...)
		}
	case port.HistoryChanged:
		if f.Lanes == 0 || f.Outage { // nothing was dropped, or the log line at the end of the outage reports it
			return
		}
		log.Warn("database history changed", "lanes", f.Lanes)
	case port.LeaseLapsed:
		write := log.Warn
		if f.Outage { // the outage itself has been logged
			write = log.Debug
		}
		write("lease lapsed", "lanes", f.Lanes, "reason", f.Reason, "last_answered_ago", f.Since, "noticed_late_by", f.Late)
	case port.DrainCutOff:
		log.Warn("drain cut off", "messages_sent_again", f.Messages)
	case port.LaneGained:
		log.Debug("lane gained", "lane", f.Lane, "epoch", f.Epoch)
	case port.LaneLost:
		log.Debug("lane lost", "lane", f.Lane, "reason", f.Reason)
	case port.RecordParked:
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

// healthLine logs the beginning or the end of an outage of the store or a destination.
func healthLine(log *slog.Logger, f port.HealthChanged) {
	args := []any{"part", f.Part}
	switch {
	case f.Part != "store" && f.Down:
		log.Warn("destination unavailable", append(args, "error", f.Err)...)
	case f.Untried:
		log.Info("destination not held any more", append(args, "reason", "nothing was sent there for minutes")...)
	case f.Part != "store":
		log.Info("destination available again", args...)
	case f.Down:
		log.Warn("database unreachable", append(args, "error", f.Err)...)
	default:
		if args = append(args, "after", f.After.Round(time.Millisecond)); f.NewHistory {
			args = append(args, "new_history", true)
		}
		log.Info("database reachable again", args...)
	}
}

// await gives workers a moment to end, so that no goroutine outlives a Run whose
// store and sink obey their contexts.
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
		lp.r.log.Warn("call ignored its context and was abandoned")
	}
}
