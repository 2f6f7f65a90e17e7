package relay

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/core"
)

// send hands an answer to the loop unless it has ended.
func (lp *loop) send(ev core.Event) {
	select {
	case lp.events <- ev:
	case <-lp.ended:
	}
}

func (lp *loop) lease(ctx context.Context, a core.Lease) {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	ev := core.Leased{ID: a.ID}
	lp.guard("lease", &ev.Err, func() (err error) { ev.Grant, err = lp.r.store.Lease(ctx, a.Req); return err })
	lp.send(ev)
}

func (lp *loop) read(ctx context.Context, a core.Read) {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	ev := core.ReadDone{ID: a.ID}
	lp.guard("read", &ev.Err, func() (err error) { ev.Batches, err = lp.r.store.Read(ctx, a.Reads); return err })
	lp.send(ev)
}

func (lp *loop) settle(ctx context.Context, a core.Settle) {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	ev := core.Settled{ID: a.ID}
	lp.guard("settle", &ev.Err, func() (err error) { ev.Lost, err = lp.r.store.Settle(ctx, a.Settlements); return err })
	lp.send(ev)
}

// wait ends by its limit even when the store's Wait does not.
func (lp *loop) wait(ctx context.Context, a core.Wait) {
	ctx, cancel := context.WithTimeout(ctx, a.Max+lp.ttl)
	defer cancel()
	var err error
	lp.guard("wait", &err, func() error { return lp.r.store.Wait(ctx, a.Max) })
	if err != nil { // a broken bell must not turn polling into a spin
		sleep(ctx, a.Max)
	}
	lp.send(core.Woke{ID: a.ID})
}

func (lp *loop) deliver(ctx context.Context, a core.Deliver) {
	var (
		errs []error
		err  error
	)
	lp.guard("deliver", &err, func() error { errs = lp.r.sink.Deliver(ctx, a.Msgs); return nil })
	if err != nil {
		errs = make([]error, len(a.Msgs))
		for i := range errs {
			errs[i] = broker.Unknown(err, "panic", "")
		}
	}
	lp.send(core.Delivered{ID: a.ID, Errs: errs})
}

// guard calls fn and makes an error of a panic: a bug in an adapter must not
// take the application down. The value of a panic may hold a payload, so only
// its type is told.
func (lp *loop) guard(what string, err *error, fn func() error) {
	defer func() {
		if v := recover(); v != nil {
			*err = fmt.Errorf("%s panicked with a %T", what, v)
			lp.r.log.Error("a call panicked", "call", what, "type", fmt.Sprintf("%T", v), "stack", string(debug.Stack()))
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
