package relay

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/port"
)

// job is one call to the store or the sink, and its answer.
type job func() port.Event

// job returns the job of an action. The time of a delivery counts from this call.
func (lp *loop) job(a port.Action) job {
	switch a := a.(type) {
	case port.Lease:
		return func() port.Event { return lp.lease(a) }
	case port.Read:
		return func() port.Event { return lp.read(a) }
	case port.Settle:
		return func() port.Event { return lp.settle(a) }
	case port.Wait:
		return func() port.Event { return lp.wait(a) }
	case port.Deliver:
		ctx, cancel := context.WithTimeout(lp.calls, a.Timeout)
		lp.cancels[a.ID] = cancel
		return func() port.Event { return lp.deliver(ctx, a) }
	}
	return nil
}

func (lp *loop) lease(a port.Lease) port.Event {
	ctx, cancel := context.WithTimeout(lp.calls, a.Timeout)
	defer cancel()
	ev := port.Leased{ID: a.ID}
	a.Req.Report = lp.r.rec.report(&lp.r.opts)
	a.Req.Report.Wake = lp.wakes()
	beat := lp.stops.begin()
	lp.guard("lease", &ev.Err, func() (err error) { ev.Grant, err = lp.r.store.Lease(ctx, a.Req); return err })
	if ev.Err == nil && !a.Req.Leave {
		if write := lp.stops.told(beat, ev.Grant.Stopped); write != nil {
			lp.work.Go(func() { write(lp.calls) })
		}
	}
	return ev
}

// wakes returns how the store learns of messages, and logs a change of it.
func (lp *loop) wakes() string {
	state := lp.r.store.Info().Wake
	if state == nil {
		return ""
	}
	w := state()
	text := cut(w.String(), 500)
	if before := lp.woken.Swap(&text); before != nil && *before == text || w.Using != w.Wanted && w.Why == "" || before == nil && w.Using == "poll" && w.Wanted == "poll" {
		return text
	}
	level := slog.LevelInfo
	if w.Fix != "" {
		level = slog.LevelWarn
	}
	lp.r.log.Log(lp.calls, level, "wake changed", "wake", w.Using, "wanted", w.Wanted, "reason", w.Why, "fix", w.Fix)
	return text
}

func (lp *loop) read(a port.Read) port.Event {
	ctx, cancel := context.WithTimeout(lp.calls, a.Timeout)
	defer cancel()
	ev := port.ReadDone{ID: a.ID}
	lp.guard("read", &ev.Err, func() (err error) { ev.Batches, err = lp.r.store.Read(ctx, a.Reads); return err })
	return ev
}

func (lp *loop) settle(a port.Settle) port.Event {
	ctx, cancel := context.WithTimeout(lp.calls, a.Timeout)
	defer cancel()
	ev := port.Settled{ID: a.ID}
	lp.guard("settle", &ev.Err, func() (err error) { ev.Lost, err = lp.r.store.Settle(ctx, a.Settlements); return err })
	return ev
}

// wait ends at its limit even if the store's Wait does not.
func (lp *loop) wait(a port.Wait) port.Event {
	ctx, cancel := context.WithTimeout(lp.calls, a.Max+lp.ttl)
	defer cancel()
	var err error
	lp.guard("wait", &err, func() error { return lp.r.store.Wait(ctx, a.Max) })
	if err != nil { // a failing Wait must not turn polling into a busy loop
		sleep(ctx, a.Max)
	}
	return port.Woke{ID: a.ID}
}

func (lp *loop) deliver(ctx context.Context, a port.Deliver) port.Event {
	var (
		errs []error
		err  error
	)
	ctx, end := lp.r.send(ctx, a.Msgs)
	lp.guard("deliver", &err, func() error { errs = lp.r.sink.Deliver(ctx, broker.Batch{Pipe: lp.pipe, Messages: a.Msgs}); return nil })
	if err != nil {
		errs = make([]error, len(a.Msgs))
		for i := range errs {
			errs[i] = broker.Unknown(err, "panic", "")
		}
	}
	end(errs)
	return port.Delivered{ID: a.ID, Errs: errs}
}

// guard calls fn and converts a panic to an error: a bug in an adapter must not
// crash the application. The value of a panic may contain a payload, so only
// its type is logged.
func (lp *loop) guard(what string, err *error, fn func() error) {
	defer func() {
		if v := recover(); v != nil {
			*err = fmt.Errorf("%s panicked with a %T", what, v)
			lp.r.log.Error("call panicked", "call", what, "type", fmt.Sprintf("%T", v), "stack", string(debug.Stack()))
		}
	}()
	*err = fn()
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
