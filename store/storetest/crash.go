package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/postrider/postrider/store"
)

func crashCases() []Case {
	return []Case{
		{
			Name: "crash/owners", Run: crashOwners, Needs: NeedsCrashes,
			Promise: "a grant counts the previous owners that lost the lane without settling a message, each once, except the caller",
		},
		{
			Name: "crash/progress", Run: crashProgress, Needs: NeedsCrashes,
			Promise: "a settled message restarts the count; a settlement that moves nothing does not",
		},
		{
			Name: "crash/release", Run: crashRelease, Needs: NeedsCrashes,
			Promise: "a release is not a loss, and clears the losses before it",
		},
		{
			Name: "crash/code", Run: crashCode,
			Promise: "a parked read returns the code of each record",
		},
		{
			Name: "crash/retried", Run: crashRetried, Needs: NeedsCrashes,
			Promise: "a person's retry clears the attempts that a message had used before it became a suspect",
		},
		{
			Name: "crash/buried", Run: crashBuried, Needs: NeedsCrashes,
			Promise: "after an owner that ended, a grant counts the lane's dead letters that ended their relays, and no others",
		},
	}
}

// dies starts an instance that takes all lanes, does something with the first lane, and
// never renews its heartbeat.
func dies(ctx context.Context, env Env, boot string, want int, do func(*relay) error) error {
	r, err := solo(ctx, env, boot)
	if err != nil {
		return err
	}
	lane, err := r.laneOf(ctx, "k")
	if err != nil {
		return err
	}
	l, err := r.held(lane)
	if err != nil {
		return err
	}
	if l.Crashes != want {
		return fmt.Errorf("%s gets a count of %d owners that ended without progress, want %d", boot, l.Crashes, want)
	}
	if err := r.shorten(ctx, tick(env)); err != nil {
		return err
	}
	if do != nil {
		if err := do(r); err != nil {
			return err
		}
	}
	return env.Advance(ctx, 2*tick(env))
}

func crashOwners(ctx context.Context, env Env) error {
	if err := commit(ctx, env, label("k", "a")); err != nil {
		return err
	}
	for i, want := range []int{0, 1, 2, 3, 4} {
		if err := dies(ctx, env, fmt.Sprint("boot", i), want, nil); err != nil {
			return err
		}
	}
	return dies(ctx, env, "boot4", 4, nil) // it lost the lane itself and takes it again
}

func crashProgress(ctx context.Context, env Env) error {
	if err := commit(ctx, env, label("k", "a"), label("k", "b")); err != nil {
		return err
	}
	settles := func(n int) func(*relay) error {
		return func(r *relay) error {
			lane, err := r.laneOf(ctx, "k")
			if err != nil {
				return err
			}
			s := store.Settlement{Lane: lane}
			if n > 0 {
				b, err := r.read(ctx, lane, nil, n)
				if err != nil {
					return err
				}
				s.Position, s.Delivered = b.Position, len(b.Messages)
			}
			return r.settle(ctx, s)
		}
	}
	for i, step := range []struct {
		want int
		do   func(*relay) error
	}{{0, nil}, {1, settles(0)}, {2, settles(1)}, {1, nil}, {2, nil}} {
		if err := dies(ctx, env, fmt.Sprint("boot", i), step.want, step.do); err != nil {
			return err
		}
	}
	return nil
}

func crashRelease(ctx context.Context, env Env) error {
	if err := commit(ctx, env, label("k", "a")); err != nil {
		return err
	}
	for i, step := range []struct {
		want int
		do   func(*relay) error
	}{{0, nil}, {1, func(r *relay) error { return r.leave(ctx) }}, {0, nil}, {1, nil}} {
		if err := dies(ctx, env, fmt.Sprint("boot", i), step.want, step.do); err != nil {
			return err
		}
	}
	return nil
}

func crashCode(ctx context.Context, env Env) error {
	at := store.Park{State: store.Retry, Captures: true, Attempts: 1, Class: "unknown", Code: store.CodeCrashed, Error: "x"}
	behind := store.Park{State: store.Waiting, Code: store.CodeCrashed}
	p, err := parks(ctx, env, series("k", "m", 3), at, behind, waiting())
	if err != nil {
		return err
	}
	want := []string{store.CodeCrashed, store.CodeCrashed, ""}
	whole, err := p.r.due(ctx, p.lane)
	if err != nil {
		return err
	}
	named, err := p.r.queues(ctx, p.lane, 10, []string{"k"})
	if err != nil {
		return err
	}
	for _, b := range []store.Batch{whole, named} {
		if len(b.Meta) != len(want) {
			return fmt.Errorf("%d records are due, want %d", len(b.Meta), len(want))
		}
		for i, m := range b.Meta {
			if m.Code != want[i] {
				return fmt.Errorf("record %d has code %q, want %q", i, m.Code, want[i])
			}
		}
	}
	return nil
}

func crashBuried(ctx context.Context, env Env) error {
	of := store.Park{State: store.Dead, Attempts: 3, Class: "unknown", Code: store.CodeCrashed, Error: "x"}
	p, err := parks(ctx, env, series("k", "m", 4), of, dead(false), of, waiting())
	if err != nil {
		return err
	}
	if err := errors.Join(p.r.leave(ctx), commit(ctx, env, label("k", "last"))); err != nil {
		return err
	}
	if err := dies(ctx, env, "mortal", 0, nil); err != nil {
		return err
	}
	next, err := solo(ctx, env, "heir")
	if err != nil {
		return err
	}
	l, err := next.held(p.lane)
	if err == nil && l.Buried != 2 {
		err = fmt.Errorf("Buried is %d, want 2", l.Buried)
	}
	return err
}

func crashRetried(ctx context.Context, env Env) error {
	at := store.Park{State: store.Retry, Captures: true, Attempts: 1, Class: "unknown", Code: store.CodeCrashed + "/8", Error: "x"}
	p, err := parks(ctx, env, series("k", "m", 1), at)
	if err != nil {
		return err
	}
	if _, err := p.done(ctx, store.ActRetry, 0); err != nil {
		return err
	}
	b, err := p.r.due(ctx, p.lane)
	if err != nil {
		return err
	}
	if len(b.Meta) != 1 || b.Meta[0].Code != store.CodeCrashed || b.Meta[0].Attempts != 0 {
		return fmt.Errorf("after the retry %+v is due, want one record with code %s and no attempt", b.Meta, store.CodeCrashed)
	}
	return nil
}
