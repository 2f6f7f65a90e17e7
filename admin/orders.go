package admin

import (
	"context"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// livesEvery is the time between two checks for a live relay: the query counts
// pending messages.
const livesEvery = 2 * time.Second

// Follow waits until an order is done, or has made no progress for
// Options.Wait, and returns its state. While no relay is alive, Follow itself owns the
// order's lanes, a page at a time, except for a replay, which only a relay
// can send. progress, if not nil, is called on every change. An order continues when
// Follow has returned.
func Follow(ctx context.Context, st store.Store, office *ops.Office, id int64, o *Options, progress func(ops.OrderState)) (ops.OrderState, error) {
	if err := office.Need(ops.CanOrder); err != nil {
		return ops.OrderState{}, err
	}
	e := &executor{st: st, ad: office.Admin, opts: o.withDefaults(), lanes: map[store.Lane]bool{}}
	last := ops.OrderState{Moved: -1}
	var changed, asked time.Time
	alive := false
	for {
		state, err := office.Orders.OrderState(ctx, id)
		if err != nil {
			return state, err
		}
		if state.Moved != last.Moved || len(state.Open) != len(last.Open) {
			last, changed = state, time.Now()
			if progress != nil {
				progress(state)
			}
		}
		if state.Done || time.Since(changed) >= e.opts.Wait {
			return state, nil
		}
		if time.Since(asked) >= livesEvery {
			if alive, err = e.relayLives(ctx); err != nil {
				return state, err
			}
			asked = time.Now()
		}
		if !alive && state.Kind == store.ActReplay {
			return state, nil
		}
		if !alive {
			if err := e.doPage(ctx, state.Open); err != nil {
				return state, err
			}
		}
		select {
		case <-ctx.Done():
			return state, ctx.Err()
		case <-time.After(e.opts.Poll):
		}
	}
}

// doPage executes the waiting requests of the lanes, as their owner.
func (e *executor) doPage(ctx context.Context, lanes []store.Lane) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	clear(e.lanes)
	for _, l := range lanes {
		e.lanes[l] = true
	}
	return e.beOwner(ctx)
}
