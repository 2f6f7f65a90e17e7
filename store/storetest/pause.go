package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func pauseCases() []Case {
	return []Case{
		{
			Name: "pause/key", Run: pauseKey, Needs: NeedsPauses,
			Promise: "a paused key is captured and has no due record until it is resumed; other keys flow",
		},
		{
			Name: "pause/lane", Run: pauseLane, Needs: NeedsPauses,
			Promise: "a paused lane is marked for its owner and has no due record; its requests are executed",
		},
		{
			Name: "pause/next-owner", Run: pauseNextOwner, Needs: NeedsPauses,
			Promise: "the next owner gets the pauses",
		},
		{
			Name: "pause/unchanged", Run: pauseUnchanged, Needs: NeedsPauses,
			Promise: "a second pause changes nothing, nor does a resume without a pause",
		},
		{
			Name: "pause/not-found", Run: pauseNotFound, Needs: NeedsPauses,
			Promise: "a pause of a lane that does not exist returns ErrNotFound",
		},
	}
}

// hold requests a pause or a resume and executes it.
func (p *parking) hold(ctx context.Context, kind store.ActKind, key string) (int64, error) {
	id, err := p.env.Office().Admin.Request(ctx, store.Act{Kind: kind, Key: key, Lane: p.lane, Actor: "ann", Reason: "test"})
	if err != nil {
		return 0, fmt.Errorf("request %s of key %q: %w", kind, key, err)
	}
	return id, p.execute(ctx, id)
}

// wantPaused compares the mark of the lane in a lease and in a read.
func (p *parking) wantPaused(ctx context.Context, when string, want bool) error {
	leased, err := p.r.view(ctx, p.lane)
	if err != nil {
		return err
	}
	b, err := p.r.due(ctx, p.lane)
	if err != nil {
		return err
	}
	if leased.Paused != want || b.Parked.Paused != want {
		return fmt.Errorf("%s: Paused is %v in the lease and %v in the read, want %v", when, leased.Paused, b.Parked.Paused, want)
	}
	return nil
}

func pauseKey(ctx context.Context, env Env) error {
	p, err := twoQueues(ctx, env, 2, 2)
	if err != nil {
		return err
	}
	held := p.b.Messages[0].Key
	if _, err := p.hold(ctx, store.ActPause, held); err != nil {
		return err
	}
	if err := p.wantView(ctx, "paused before anything is parked", 0, held); err != nil {
		return err
	}
	err = p.r.settle(ctx, store.Settlement{Lane: p.lane, Position: p.b.Position, Park: []store.Park{
		p.park(0, waiting()), p.park(1, waiting()), p.park(2, store.Park{State: store.Retry, Captures: true, Attempts: 1}), p.park(3, waiting()),
	}})
	if err != nil {
		return err
	}
	if err := p.wantDue(ctx, "while a is paused", "b000", "b001"); err != nil {
		return err
	}
	if err := wantHolds(ctx, env, ops.Hold{Lane: p.lane, Key: held}); err != nil {
		return err
	}
	if _, err := p.hold(ctx, store.ActResume, held); err != nil {
		return err
	}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Delivered: 2, Unpark: p.seqs(2, 3)}); err != nil {
		return err
	}
	if err := p.wantDue(ctx, "after a was resumed", "a000", "a001"); err != nil {
		return err
	}
	return wantHolds(ctx, env)
}

func pauseLane(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 2), store.Park{State: store.Retry, Captures: true, Attempts: 1}, waiting())
	if err != nil {
		return err
	}
	if _, err := p.hold(ctx, store.ActPause, ""); err != nil {
		return err
	}
	if err := p.wantPaused(ctx, "after the pause", true); err != nil {
		return err
	}
	if err := p.wantDue(ctx, "while the lane is paused"); err != nil {
		return err
	}
	if _, err := p.done(ctx, store.ActDiscard, 0); err != nil {
		return err
	}
	if err := wantHolds(ctx, env, ops.Hold{Lane: p.lane}); err != nil {
		return err
	}
	if _, err := p.hold(ctx, store.ActResume, ""); err != nil {
		return err
	}
	if err := p.wantPaused(ctx, "after it was resumed", false); err != nil {
		return err
	}
	return p.wantDue(ctx, "after the lane was resumed", "m001")
}

func pauseNextOwner(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 1))
	if err != nil {
		return err
	}
	for _, key := range []string{"k", ""} {
		if _, err := p.hold(ctx, store.ActPause, key); err != nil {
			return err
		}
	}
	if err := p.r.leave(ctx); err != nil {
		return err
	}
	p.r = newRelay(env, "b")
	if err := p.r.lease(ctx); err != nil {
		return err
	}
	if err := p.wantPaused(ctx, "the next owner", true); err != nil {
		return err
	}
	return p.wantView(ctx, "the next owner", 0, "k")
}

func pauseUnchanged(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 1))
	if err != nil {
		return err
	}
	want := map[int64]string{}
	for _, step := range []struct {
		kind   store.ActKind
		result string
	}{
		{store.ActResume, ops.ResultUnchanged},
		{store.ActPause, ops.ResultDone},
		{store.ActPause, ops.ResultUnchanged},
		{store.ActResume, ops.ResultDone},
	} {
		id, err := p.hold(ctx, step.kind, "k")
		if err != nil {
			return err
		}
		want[id] = step.result
	}
	return wantActs(ctx, env, want)
}

func pauseNotFound(ctx context.Context, env Env) error {
	for _, lane := range []store.Lane{-1, store.Lane(env.Features().Lanes)} {
		_, err := env.Office().Admin.Request(ctx, store.Act{Kind: store.ActPause, Lane: lane, Actor: "ann", Reason: "test"})
		if !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("pausing lane %d, which does not exist: error %v", lane, err)
		}
	}
	return nil
}

// wantHolds compares the pauses in Status.
func wantHolds(ctx context.Context, env Env, want ...ops.Hold) error {
	st, err := env.Office().Admin.Status(ctx)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if len(st.Holds) != len(want) {
		return fmt.Errorf("status shows the pauses %+v, want %+v", st.Holds, want)
	}
	for i, h := range st.Holds {
		if h.Since.IsZero() || h.Lane != want[i].Lane || h.Key != want[i].Key {
			return fmt.Errorf("status shows the pause %+v, want %+v", h, want[i])
		}
	}
	return nil
}
