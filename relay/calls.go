package relay

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/core"
	"github.com/postrider/postrider/store"
)

// job is one call to the store or the sink, and its answer.
type job func() core.Event

// job makes one of an action. The time of a delivery counts from here.
func (lp *loop) job(a core.Action) job {
	switch a := a.(type) {
	case core.Lease:
		return func() core.Event { return lp.lease(a) }
	case core.Read:
		return func() core.Event { return lp.read(a) }
	case core.Settle:
		return func() core.Event { return lp.settle(a) }
	case core.Wait:
		return func() core.Event { return lp.wait(a) }
	case core.Deliver:
		ctx, cancel := context.WithTimeout(lp.calls, a.Timeout)
		lp.cancels[a.ID] = cancel
		return func() core.Event { return lp.deliver(ctx, a) }
	}
	return nil
}

func (lp *loop) lease(a core.Lease) core.Event {
	ctx, cancel := context.WithTimeout(lp.calls, a.Timeout)
	defer cancel()
	ev := core.Leased{ID: a.ID}
	a.Req.Report = store.Report{Version: lp.r.opts.Version, Trouble: lp.r.rec.trouble()}
	lp.guard("lease", &ev.Err, func() (err error) { ev.Grant, err = lp.r.store.Lease(ctx, a.Req); return err })
	if ev.Err == nil && !a.Req.Leave {
		if write := lp.stops.told(ev.Grant.Stopped); write != nil {
			lp.work.Go(func() { write(lp.calls) })
		}
	}
	return ev
}

func (lp *loop) read(a core.Read) core.Event {
	ctx, cancel := context.WithTimeout(lp.calls, a.Timeout)
	defer cancel()
	ev := core.ReadDone{ID: a.ID}
	lp.guard("read", &ev.Err, func() (err error) { ev.Batches, err = lp.r.store.Read(ctx, a.Reads); return err })
	return ev
}

func (lp *loop) settle(a core.Settle) core.Event {
	ctx, cancel := context.WithTimeout(lp.calls, a.Timeout)
	defer cancel()
	ev := core.Settled{ID: a.ID}
	lp.guard("settle", &ev.Err, func() (err error) { ev.Lost, err = lp.r.store.Settle(ctx, a.Settlements); return err })
	return ev
}

// wait ends by its limit even when the store's Wait does not.
func (lp *loop) wait(a core.Wait) core.Event {
	ctx, cancel := context.WithTimeout(lp.calls, a.Max+lp.ttl)
	defer cancel()
	var err error
	lp.guard("wait", &err, func() error { return lp.r.store.Wait(ctx, a.Max) })
	if err != nil { // a broken bell must not turn polling into a spin
		sleep(ctx, a.Max)
	}
	return core.Woke{ID: a.ID}
}

func (lp *loop) deliver(ctx context.Context, a core.Deliver) core.Event {
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
	return core.Delivered{ID: a.ID, Errs: errs}
}

// guard calls fn and makes an error of a panic: a bug in an adapter must not
// take the application down. The value of a panic may hold a payload, so only
// its type is told.
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
