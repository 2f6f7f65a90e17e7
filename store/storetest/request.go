package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func requestCases() []Case {
	return []Case{
		{
			Name: "request/waits-for-owner", Run: requestWaits,
			Promise: "a request changes nothing until the lane's owner executes it, and only the owner gets it",
		},
		{
			Name: "request/retry", Run: requestRetry,
			Promise: "retry makes the record due now with attempts 0 and the next generation",
		},
		{
			Name: "request/discard", Run: requestDiscard,
			Promise: "discard removes the record and frees its key",
		},
		{
			Name: "request/once", Run: requestOnce,
			Promise: "a request is executed exactly once, even if its settlement or its id is repeated",
		},
		{
			Name: "request/in-order", Run: requestInOrder,
			Promise: "requests are executed in the order in which they are named",
		},
		{
			Name: "request/gone", Run: requestGone,
			Promise: "a request for a record that is no longer parked has the result gone",
		},
		{
			Name: "request/acts-only", Run: requestActsOnly,
			Promise: "who takes lanes for requests alone gets them and carries them out, with or without views",
		},
		{
			Name: "request/not-found", Run: requestNotFound,
			Promise: "a new request for a record that is not parked returns ErrNotFound",
		},
	}
}

// ask stores a request for one record.
func (p *parking) ask(ctx context.Context, kind store.ActKind, index int) (int64, error) {
	id, err := p.env.Office().Admin.Request(ctx, store.Act{Kind: kind, Seq: p.seqs(index)[0], Actor: "ann", Reason: "test"})
	if err != nil {
		return 0, fmt.Errorf("request %s of record %d: %w", kind, index, err)
	}
	return id, nil
}

// done stores a request for one record and executes it.
func (p *parking) done(ctx context.Context, kind store.ActKind, index int) (int64, error) {
	id, err := p.ask(ctx, kind, index)
	if err != nil {
		return 0, err
	}
	return id, p.execute(ctx, id)
}

// execute settles requests and nothing else.
func (p *parking) execute(ctx context.Context, ids ...int64) error {
	return p.r.settle(ctx, store.Settlement{Lane: p.lane, Requests: ids})
}

// wantActs compares the results of requests; "" is an open request.
func wantActs(ctx context.Context, env Env, want map[int64]string) error {
	var ids []int64
	for id := range want {
		ids = append(ids, id)
	}
	acts, err := env.Office().Admin.Acts(ctx, ids...)
	if err != nil {
		return fmt.Errorf("acts: %w", err)
	}
	if len(acts) != len(ids) {
		return fmt.Errorf("%d acts for %d ids", len(acts), len(ids))
	}
	for _, act := range acts {
		result, asked := want[act.ID]
		if !asked || act.Done != (result != "") || act.Result != result {
			return fmt.Errorf("request %d: done %v, result %q, want %q", act.ID, act.Done, act.Result, result)
		}
	}
	return nil
}

func requestIDs(g store.Grant) []int64 {
	var ids []int64
	for _, req := range g.Requests {
		ids = append(ids, req.ID)
	}
	return ids
}

func requestWaits(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 2), dead(true), waiting())
	if err != nil {
		return err
	}
	first, err := p.ask(ctx, store.ActRetry, 0)
	if err != nil {
		return err
	}
	second, err := p.ask(ctx, store.ActDiscard, 0)
	if err != nil {
		return err
	}
	if err := p.wantDue(ctx, "before the request is executed"); err != nil {
		return err
	}
	if got, want := requestIDs(p.r.grant), []int64{first, second}; !slices.Equal(got, want) {
		return fmt.Errorf("the owner gets requests %v, want %v", got, want)
	}
	req := p.r.grant.Requests[0]
	if req.Lane != p.lane || req.Kind != store.ActRetry || req.Seq != p.seqs(0)[0] || req.Actor != "ann" || req.Reason != "test" {
		return fmt.Errorf("the owner gets %+v", req)
	}
	other := newRelay(env, "b")
	if err := other.lease(ctx); err != nil {
		return err
	}
	if got := requestIDs(other.grant); len(got) != 0 {
		return fmt.Errorf("an instance without lanes gets requests %v", got)
	}
	return wantActs(ctx, env, map[int64]string{first: "", second: ""})
}

func requestRetry(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 2), dead(true), waiting())
	if err != nil {
		return err
	}
	id, err := p.done(ctx, store.ActRetry, 0)
	if err != nil {
		return err
	}
	if err := p.wantDue(ctx, "after the retry was executed", "m000", "m001"); err != nil {
		return err
	}
	if err := p.wantView(ctx, "after the retry was executed", 2, "k"); err != nil {
		return err
	}
	b, err := p.r.due(ctx, p.lane)
	if err != nil {
		return err
	}
	if meta := b.Meta[0]; meta.State != store.Retry || meta.Attempts != 0 || meta.Generation != 1 {
		return fmt.Errorf("the record is %s with %d attempts in generation %d, want retry, 0, 1", meta.State, meta.Attempts, meta.Generation)
	}
	if got := requestIDs(p.r.grant); len(got) != 0 {
		return fmt.Errorf("the owner still gets requests %v", got)
	}
	again := p.park(0, hourly(store.Retry, true))
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Park: []store.Park{again}}); err != nil {
		return err
	}
	records, err := env.Office().Admin.Parked(ctx, ops.ParkedQuery{State: store.Retry})
	if err != nil || len(records) != 1 || records[0].Generation != 1 {
		return fmt.Errorf("the record failed again and lost its generation: %d records, error %v", len(records), err)
	}
	return wantActs(ctx, env, map[int64]string{id: ops.ResultDone})
}

func requestDiscard(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 2), dead(true), waiting())
	if err != nil {
		return err
	}
	id, err := p.done(ctx, store.ActDiscard, 0)
	if err != nil {
		return err
	}
	if err := p.wantDue(ctx, "after the head was discarded", "m001"); err != nil {
		return err
	}
	if err := p.wantView(ctx, "after the head was discarded", 1, "k"); err != nil {
		return err
	}
	if err := wantActs(ctx, env, map[int64]string{id: ops.ResultDone}); err != nil {
		return err
	}
	return wantStatus(ctx, env, map[string]int64{"delivered": 0, "dead": 0, "waiting": 1})
}

func requestOnce(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 1), dead(true))
	if err != nil {
		return err
	}
	id, err := p.ask(ctx, store.ActRetry, 0)
	if err != nil {
		return err
	}
	for range 2 { // as if the first reply had been lost
		lost, err := p.r.trySettle(ctx, store.Settlement{Lane: p.lane, Requests: []int64{id}})
		if err != nil || lost {
			return fmt.Errorf("settlement of a request: lost %v, error %v", lost, err)
		}
	}
	p.r.epoch[p.lane]++
	if err := p.execute(ctx, id); err != nil {
		return fmt.Errorf("settle an executed request again: %w", err)
	}
	b, err := p.r.due(ctx, p.lane)
	if err != nil {
		return err
	}
	if len(b.Meta) != 1 || b.Meta[0].Generation != 1 {
		return fmt.Errorf("after one retry, named three times: %+v, want generation 1", b.Meta)
	}
	return wantActs(ctx, env, map[int64]string{id: ops.ResultDone})
}

func requestInOrder(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 1), dead(true))
	if err != nil {
		return err
	}
	retry, err := p.ask(ctx, store.ActRetry, 0)
	if err != nil {
		return err
	}
	discard, err := p.ask(ctx, store.ActDiscard, 0)
	if err != nil {
		return err
	}
	late, err := p.ask(ctx, store.ActRetry, 0)
	if err != nil {
		return err
	}
	if err := p.execute(ctx, retry, discard, late); err != nil {
		return err
	}
	if err := p.wantView(ctx, "after retry, discard, retry", 0); err != nil {
		return err
	}
	return wantActs(ctx, env, map[int64]string{retry: ops.ResultDone, discard: ops.ResultDone, late: ops.ResultGone})
}

func requestGone(ctx context.Context, env Env) error {
	now := store.Park{State: store.Retry, Captures: true, Attempts: 1}
	p, err := parks(ctx, env, series("k", "m", 1), now)
	if err != nil {
		return err
	}
	id, err := p.ask(ctx, store.ActRetry, 0)
	if err != nil {
		return err
	}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Delivered: 1, Unpark: p.seqs(0)}); err != nil {
		return err
	}
	if err := p.execute(ctx, id); err != nil {
		return err
	}
	if err := p.wantView(ctx, "after a retry of what was delivered", 0); err != nil {
		return err
	}
	return wantActs(ctx, env, map[int64]string{id: ops.ResultGone})
}

func requestActsOnly(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 1), dead(true))
	if err != nil {
		return err
	}
	id, err := p.ask(ctx, store.ActDiscard, 0)
	if err != nil {
		return err
	}
	if err := p.r.leave(ctx); err != nil {
		return err
	}
	p.r = newRelay(env, "person")
	if err := p.r.lease(ctx, func(req *store.LeaseRequest) { req.ActsOnly, req.Only = true, []store.Lane{p.lane} }); err != nil {
		return err
	}
	l, err := p.r.held(p.lane)
	if err != nil {
		return err
	}
	if got := requestIDs(p.r.grant); !slices.Equal(got, []int64{id}) || !l.Known && l.Parked.Records != 1 {
		return fmt.Errorf("requests %v, want %d; view known %v with %d records", got, id, l.Known, l.Parked.Records)
	}
	if err := p.execute(ctx, id); err != nil {
		return err
	}
	if err := p.r.leave(ctx); err != nil {
		return err
	}
	if p.r, err = solo(ctx, env, "next"); err != nil {
		return err
	}
	if err := p.wantView(ctx, "after a discard without a view", 0); err != nil {
		return err
	}
	return wantActs(ctx, env, map[int64]string{id: ops.ResultDone})
}

func requestNotFound(ctx context.Context, env Env) error {
	if _, _, err := filled(ctx, env, 1); err != nil {
		return err
	}
	for _, seq := range []int64{0, 1, 1 << 40} {
		_, err := env.Office().Admin.Request(ctx, store.Act{Kind: store.ActRetry, Seq: seq, Actor: "ann", Reason: "test"})
		if !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("request for number %d, which is not parked: error %v", seq, err)
		}
	}
	return nil
}
