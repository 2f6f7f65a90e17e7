package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/store/ops"
)

func historyCases() []Case {
	return []Case{
		{
			Name: "history/kept", Run: historyKept, Needs: NeedsHistory,
			Promise: "a point of the history is listed as it was kept, with the highest number so far, and a slot has one",
		},
		{
			Name: "history/since", Run: historySince, Needs: NeedsHistory,
			Promise: "the history lists the points from a moment on, and fewer when the caller wants them further apart",
		},
	}
}

// historyOf keeps points until one was refused, and returns the history.
func historyOf(ctx context.Context, env Env, p ops.Point) ([]ops.Point, error) {
	h := env.Office().History
	for try := 0; ; try++ {
		kept, err := h.Keep(ctx, p)
		switch {
		case err != nil:
			return nil, fmt.Errorf("keep: %w", err)
		case try == 0 && !kept:
			return nil, errors.New("the first point of a history was not kept")
		case !kept:
			all, err := h.Points(ctx, time.Time{}, 0)
			return all, err
		case try > 100:
			return nil, errors.New("100 points were kept one right after the other")
		}
	}
}

func historyKept(ctx context.Context, env Env) error {
	if _, _, err := filled(ctx, env, 3); err != nil {
		return err
	}
	want := ops.Point{Delivered: 7, Pending: 5, Capped: true, Lag: 90 * time.Second, Relays: 2, Drawn: 3}
	all, err := historyOf(ctx, env, want)
	if err != nil {
		return err
	}
	for i, got := range all {
		if i > 0 && got.At.Sub(all[i-1].At) < ops.PointSlot {
			return fmt.Errorf("two points of a slot: %s and %s", all[i-1].At, got.At)
		}
		if got.At.IsZero() || got.Drawn < want.Drawn {
			return fmt.Errorf("the point has the time %s and the number %d, want one and at least %d", got.At, got.Drawn, want.Drawn)
		}
		got.At, got.Drawn = time.Time{}, want.Drawn
		if got != want {
			return fmt.Errorf("a point came back as %+v, want %+v", got, want)
		}
	}
	return nil
}

func historySince(ctx context.Context, env Env) error {
	all, err := historyOf(ctx, env, ops.Point{Delivered: 1})
	if err != nil {
		return err
	}
	h, last := env.Office().History, all[len(all)-1].At
	for _, c := range []struct {
		since time.Time
		every time.Duration
		least int
		most  int
	}{
		{last, 0, 1, 1},
		{last.Add(time.Microsecond), 0, 0, 0},
		{time.Time{}, 15 * time.Minute, 1, 2}, // the first of a quarter of an hour
	} {
		found, err := h.Points(ctx, c.since, c.every)
		if err != nil || len(found) < c.least || len(found) > c.most {
			return fmt.Errorf("since %s, every %s: %d points, error %w, want %d to %d of %d", c.since, c.every, len(found), err, c.least, c.most, len(all))
		}
	}
	_, other := env.Office().Pipe("another")
	if found, err := other.History.Points(ctx, time.Time{}, 0); err != nil || len(found) > 0 {
		return fmt.Errorf("another pipe has %d points, error %w, want none", len(found), err)
	}
	return nil
}
