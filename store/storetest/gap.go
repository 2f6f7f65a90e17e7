package storetest

import (
	"context"
	"fmt"
	"slices"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

func gapCases() []Case {
	return []Case{
		{
			Name: "gap/runs", Run: gapRuns,
			Promise: "the view lists the runs of versions whose dead letters do not capture",
		},
		{
			Name: "gap/only-skipped", Run: gapOnlySkipped,
			Promise: "versions that may still be delivered, and records without a version, are not gaps",
		},
		{
			Name: "gap/next-owner", Run: gapNextOwner,
			Promise: "the next owner gets the versions that were skipped",
		},
		{
			Name: "gap/retry", Run: gapRetry,
			Promise: "a retry of a skipped record closes its gap, and the key waits for the record",
		},
	}
}

// numbered gives the messages of one key the versions 1, 2, 3 ...
func numbered(msgs []postrider.Message) []postrider.Message {
	for i := range msgs {
		msgs[i].Version = int64(i) + 1
	}
	return msgs
}

// wantGaps compares the gaps in the views of a lease and of a parked read.
func (p *parking) wantGaps(ctx context.Context, when string, want ...store.Gap) error {
	leased, err := p.r.view(ctx, p.lane)
	if err != nil {
		return err
	}
	b, err := p.r.due(ctx, p.lane)
	if err != nil {
		return err
	}
	for what, got := range map[string][]store.Gap{"lease": leased.Gaps, "parked read": b.Parked.Gaps} {
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s the %s shows gaps %+v, want %+v", when, what, got, want)
		}
	}
	return nil
}

func gapRuns(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, numbered(series("k", "m", 7)), dead(false))
	if err != nil {
		return err
	}
	for _, step := range []struct {
		skip int
		want []store.Gap
	}{
		{3, []store.Gap{{Key: "k", First: 1, Last: 1}, {Key: "k", First: 4, Last: 4}}},
		{4, []store.Gap{{Key: "k", First: 1, Last: 1}, {Key: "k", First: 4, Last: 5}}},
		{6, []store.Gap{{Key: "k", First: 1, Last: 1}, {Key: "k", First: 4, Last: 5}, {Key: "k", First: 7, Last: 7}}},
		{5, []store.Gap{{Key: "k", First: 1, Last: 1}, {Key: "k", First: 4, Last: 7}}},
	} {
		park := []store.Park{p.park(step.skip, dead(false))}
		if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Park: park}); err != nil {
			return err
		}
		if err := p.wantGaps(ctx, fmt.Sprintf("after version %d was skipped", step.skip+1), step.want...); err != nil {
			return err
		}
	}
	return nil
}

func gapOnlySkipped(ctx context.Context, env Env) error {
	p, err := twoQueues(ctx, env, 4, 1)
	if err != nil {
		return err
	}
	all := []store.Park{p.park(0, dead(false)), p.park(1, hourly(store.Retry, true)), p.park(2, waiting()), p.park(3, dead(true)), p.park(4, dead(false))}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Position: p.b.Position, Park: all}); err != nil {
		return err
	}
	return p.wantGaps(ctx, "of one skipped record among others", store.Gap{Key: p.b.Messages[0].Key, First: 1, Last: 1})
}

func gapNextOwner(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, numbered(series("k", "m", 3)), dead(false), dead(false))
	if err != nil {
		return err
	}
	if p.r, err = p.r.next(ctx, env); err != nil {
		return err
	}
	return p.wantGaps(ctx, "at the next owner", store.Gap{Key: "k", First: 1, Last: 2})
}

func gapRetry(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, numbered(series("k", "m", 2)), dead(false))
	if err != nil {
		return err
	}
	if _, err := p.done(ctx, store.ActRetry, 0); err != nil {
		return err
	}
	if err := p.wantGaps(ctx, "after the retry was executed"); err != nil {
		return err
	}
	if err := p.wantDue(ctx, "after the retry was executed", "m000"); err != nil {
		return err
	}
	return p.wantView(ctx, "after the retry was executed", 1, "k")
}
