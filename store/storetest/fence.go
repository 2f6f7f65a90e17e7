package storetest

import (
	"context"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

func fenceCases() []Case {
	return []Case{
		{
			Name: "fence/old-epoch", Run: fenceOldEpoch,
			Promise: "a settlement with an epoch that is not the lane's newest changes nothing and is reported as lost",
		},
		{
			Name: "fence/future-epoch", Run: fenceFutureEpoch,
			Promise: "a settlement with an epoch that the lane never had changes nothing and is reported as lost",
		},
		{
			Name: "fence/boot-id", Run: fenceBootID,
			Promise: "a settlement of a lane that belongs to another boot id changes nothing and is reported as lost",
		},
		{
			Name: "fence/zombie", Run: fenceZombie,
			Promise: "an instance whose lanes were taken over can neither settle, park, unpark nor execute requests",
		},
		{
			Name: "fence/released", Run: fenceReleased,
			Promise: "a lane that was given back cannot be settled with its old epoch once it was taken again",
		},
		{
			Name: "fence/retaken", Run: fenceRetaken,
			Promise: "an instance that took its own lane again cannot settle with the earlier epoch",
		},
		{
			Name: "fence/others-succeed", Run: fenceOthersSucceed,
			Promise: "a lost lane changes nothing while the other lanes of the same settle succeed",
		},
	}
}

// unchanged checks that the lane's present owner still finds all its records, none
// parked.
func unchanged(ctx context.Context, r *relay, lane store.Lane, want []postrider.Message) error {
	epoch := r.epoch[lane]
	if err := r.lease(ctx); err != nil {
		return err
	}
	l, err := r.held(lane)
	if err != nil {
		return err
	}
	if l.Epoch != epoch || l.Parked.Records != 0 {
		return fmt.Errorf("lane %d is at epoch %d with %d parked records, want epoch %d and none", lane, l.Epoch, l.Parked.Records, epoch)
	}
	b, err := r.read(ctx, lane, nil, 100)
	if err != nil {
		return err
	}
	return same(fmt.Sprintf("pending in lane %d", lane), labels(b), texts(want))
}

// greedy settles all of b and parks its first record.
func greedy(b store.Batch) store.Settlement {
	return store.Settlement{
		Lane: b.Lane, Position: b.Position, Delivered: len(b.Messages) - 1,
		Park: []store.Park{{Seq: b.Meta[0].Seq, Message: b.Messages[0], State: store.Dead, Captures: true, Attempts: 1}},
	}
}

// mustLose settles with an epoch and expects a lost lane.
func mustLose(ctx context.Context, r *relay, s store.Settlement, epoch int64) error {
	r.epoch[s.Lane] = epoch
	lost, err := r.trySettle(ctx, s)
	if err != nil {
		return err
	}
	if !lost {
		return fmt.Errorf("lane %d was settled by %s with epoch %d", s.Lane, r.boot, epoch)
	}
	return nil
}

func fenceOldEpoch(ctx context.Context, env Env) error {
	r, lane, err := filled(ctx, env, 5)
	if err != nil {
		return err
	}
	for range 3 {
		if err := r.settle(ctx, store.Settlement{Lane: lane}); err != nil {
			return err
		}
	}
	b, err := r.read(ctx, lane, nil, 10)
	if err != nil {
		return err
	}
	if err := mustLose(ctx, &relay{st: r.st, boot: "other", epoch: map[store.Lane]int64{}}, greedy(b), r.epoch[lane]-2); err != nil {
		return err
	}
	return unchanged(ctx, r, lane, series("k", "m", 5))
}

func fenceFutureEpoch(ctx context.Context, env Env) error {
	r, b, err := front(ctx, env)
	if err != nil {
		return err
	}
	lane := b.Lane
	epoch := r.epoch[lane]
	if err := mustLose(ctx, r, greedy(b), epoch+1); err != nil {
		return err
	}
	r.epoch[lane] = epoch
	return unchanged(ctx, r, lane, series("k", "m", 5))
}

func fenceBootID(ctx context.Context, env Env) error {
	r, b, err := front(ctx, env)
	if err != nil {
		return err
	}
	lane := b.Lane
	thief := newRelay(env, "thief")
	if err := thief.lease(ctx); err != nil {
		return err
	}
	if err := mustLose(ctx, thief, greedy(b), r.epoch[lane]); err != nil {
		return err
	}
	return unchanged(ctx, r, lane, series("k", "m", 5))
}

func fenceZombie(ctx context.Context, env Env) error {
	if err := commit(ctx, env, series("k", "m", 5)...); err != nil {
		return err
	}
	zombie, err := solo(ctx, env, "zombie")
	if err != nil {
		return err
	}
	if err := zombie.shorten(ctx, tick(env)); err != nil {
		return err
	}
	lane, err := zombie.laneOf(ctx, "k")
	if err != nil {
		return err
	}
	b, err := zombie.read(ctx, lane, nil, 10)
	if err != nil {
		return err
	}
	if err := env.Advance(ctx, 2*tick(env)); err != nil {
		return err
	}
	heir, err := solo(ctx, env, "heir")
	if err != nil {
		return err
	}
	if err := mustLose(ctx, zombie, greedy(b), zombie.epoch[lane]); err != nil {
		return err
	}
	if err := unchanged(ctx, heir, lane, series("k", "m", 5)); err != nil {
		return err
	}
	if err := heir.settle(ctx, greedy(b)); err != nil {
		return err
	}
	seq := b.Meta[0].Seq
	act, err := env.Office().Admin.Request(ctx, store.Act{Kind: store.ActRetry, Seq: seq, Actor: "test", Reason: "zombie"})
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	last := store.Settlement{Lane: lane, Unpark: []int64{seq}, Requests: []int64{act}, Delivered: 1}
	if err := mustLose(ctx, zombie, last, zombie.epoch[lane]); err != nil {
		return err
	}
	if err := wantActs(ctx, env, map[int64]string{act: ""}); err != nil {
		return err
	}
	return wantStatus(ctx, env, map[string]int64{"delivered": 4, "dead": 1, "pending": 0})
}

func fenceReleased(ctx context.Context, env Env) error {
	r, b, err := front(ctx, env)
	if err != nil {
		return err
	}
	lane := b.Lane
	epoch := r.epoch[lane]
	next, err := r.next(ctx, env)
	if err != nil {
		return err
	}
	if err := mustLose(ctx, r, greedy(b), epoch); err != nil {
		return err
	}
	return unchanged(ctx, next, lane, series("k", "m", 5))
}

func fenceRetaken(ctx context.Context, env Env) error {
	r, b, err := front(ctx, env)
	if err != nil {
		return err
	}
	lane := b.Lane
	epoch := r.epoch[lane]
	err = r.lease(ctx, observe, func(req *store.LeaseRequest) {
		req.Release = []store.Release{{Lane: lane, Epoch: epoch}}
	})
	if err != nil {
		return err
	}
	if err := r.lease(ctx); err != nil {
		return err
	}
	now := r.epoch[lane]
	if err := mustLose(ctx, r, greedy(b), epoch); err != nil {
		return err
	}
	r.epoch[lane] = now
	return unchanged(ctx, r, lane, series("k", "m", 5))
}

func fenceOthersSucceed(ctx context.Context, env Env) error {
	r, all, err := everywhere(ctx, env, manyKeys())
	if err != nil {
		return err
	}
	var settlements []store.Settlement
	victim := store.Lane(-1)
	for lane, b := range all {
		s := greedy(b)
		s.BootID, s.Epoch = r.boot, r.epoch[lane]
		if victim < 0 {
			victim = lane
			s.BootID = "zombie"
		}
		settlements = append(settlements, s)
	}
	lost, err := r.st.Settle(ctx, settlements)
	if err != nil {
		return fmt.Errorf("settle %d lanes, one of them a zombie's: %w", len(settlements), err)
	}
	if len(lost) != 1 || lost[0] != victim {
		return fmt.Errorf("lost lanes are %v, want only lane %d", lost, victim)
	}
	if err := r.lease(ctx); err != nil {
		return err
	}
	for lane := range all {
		l, err := r.held(lane)
		if err != nil {
			return err
		}
		b, err := r.read(ctx, lane, nil, 100)
		if err != nil {
			return err
		}
		pending, parked := 0, 1
		if lane == victim {
			pending, parked = len(all[lane].Messages), 0
		}
		if len(b.Messages) != pending || l.Parked.Records != parked {
			return fmt.Errorf("lane %d (lost: %v) has %d pending and %d parked records, want %d and %d",
				lane, lane == victim, len(b.Messages), l.Parked.Records, pending, parked)
		}
	}
	return nil
}
