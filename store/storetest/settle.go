package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/postrider/postrider/store"
)

func settleCases() []Case {
	return []Case{
		{
			Name: "settle/durable", Run: settleDurable,
			Promise: "the next owner starts at the settled position",
		},
		{
			Name: "settle/in-part", Run: settleInPart,
			Promise: "records after a settled position are still read, also by the next owner",
		},
		{
			Name: "settle/epoch-rises", Run: settleEpochRises,
			Promise: "a settlement that succeeded makes the lane's epoch Epoch+1",
		},
		{
			Name: "settle/no-position", Run: settleNoPosition,
			Promise: "a settlement without a position does not move the position",
		},
		{
			Name: "settle/repeat", Run: settleRepeat,
			Promise: "a committed settlement succeeds when it is repeated, and is applied once",
		},
		{
			Name: "settle/repeat-changed", Run: settleRepeatChanged,
			Promise: "a different settlement under a settled epoch is not a repetition: its lane is lost",
		},
		{
			Name: "settle/many-lanes", Run: settleManyLanes,
			Promise: "the settlements of several lanes are applied together",
		},
		{
			Name: "settle/delivered", Run: settleDelivered,
			Promise: "the progress counters add up the delivered counts",
		},
		{
			Name: "settle/nothing", Run: settleNothing,
			Promise: "settling no lane succeeds",
		},
	}
}

func settleDurable(ctx context.Context, env Env) error {
	r, b, err := front(ctx, env)
	if err != nil {
		return err
	}
	lane := b.Lane
	if err := r.settle(ctx, store.Settlement{Lane: lane, Position: b.Position, Delivered: 5}); err != nil {
		return err
	}
	next, err := r.next(ctx, env)
	if err != nil {
		return err
	}
	l, err := next.held(lane)
	if err != nil {
		return err
	}
	rest, err := next.read(ctx, lane, l.Position, 10) // another spelling of "as settled"
	if err != nil {
		return err
	}
	if err := same("read from the position of the grant", labels(rest), nil); err != nil {
		return err
	}
	got, err := next.take(ctx, 10)
	if err != nil {
		return err
	}
	return same("after everything was settled", got, nil)
}

func settleInPart(ctx context.Context, env Env) error {
	r, lane, err := filled(ctx, env, 5)
	if err != nil {
		return err
	}
	b, err := r.read(ctx, lane, nil, 2)
	if err != nil {
		return err
	}
	if err := r.settle(ctx, store.Settlement{Lane: lane, Position: b.Position, Delivered: 2}); err != nil {
		return err
	}
	again, err := r.read(ctx, lane, nil, 10)
	if err != nil {
		return err
	}
	if err := same("after two of five were settled", labels(again), texts(series("k", "m", 5))[2:]); err != nil {
		return err
	}
	next, err := r.next(ctx, env)
	if err != nil {
		return err
	}
	got, err := next.take(ctx, 10)
	if err != nil {
		return err
	}
	return same("read by the next owner", got, texts(series("k", "m", 5))[2:])
}

func settleEpochRises(ctx context.Context, env Env) error {
	r, lane, err := filled(ctx, env, 5)
	if err != nil {
		return err
	}
	for range 3 {
		b, err := r.read(ctx, lane, nil, 1)
		if err != nil {
			return err
		}
		if err := r.settle(ctx, store.Settlement{Lane: lane, Position: b.Position, Delivered: 1}); err != nil {
			return err
		}
	}
	want := r.epoch[lane]
	if err := r.lease(ctx); err != nil {
		return err
	}
	if got := r.epoch[lane]; got != want {
		return fmt.Errorf("lane %d is at epoch %d after three settlements, want %d", lane, got, want)
	}
	return nil
}

func settleNoPosition(ctx context.Context, env Env) error {
	r, lane, err := filled(ctx, env, 5)
	if err != nil {
		return err
	}
	b, err := r.read(ctx, lane, nil, 2)
	if err != nil {
		return err
	}
	var positions []store.Position
	for _, s := range []store.Settlement{{Lane: lane, Position: b.Position, Delivered: 2}, {Lane: lane}} {
		if err := r.settle(ctx, s); err != nil {
			return err
		}
		if err := r.lease(ctx); err != nil {
			return err
		}
		l, err := r.held(lane)
		if err != nil {
			return err
		}
		positions = append(positions, l.Position)
	}
	if !bytes.Equal(positions[0], positions[1]) {
		return fmt.Errorf("a settlement without a position moved lane %d from %q to %q", lane, positions[0], positions[1])
	}
	got, err := r.take(ctx, 10)
	if err != nil {
		return err
	}
	return same("after a settlement without a position", got, texts(series("k", "m", 5))[2:])
}

func settleRepeat(ctx context.Context, env Env) error {
	r, lane, err := filled(ctx, env, 5)
	if err != nil {
		return err
	}
	b, err := r.read(ctx, lane, nil, 2)
	if err != nil {
		return err
	}
	s := store.Settlement{
		Lane: lane, Position: b.Position, Delivered: 1,
		Park: []store.Park{{Seq: b.Meta[1].Seq, Message: b.Messages[1], State: store.Dead, Captures: true, Attempts: 3}},
	}
	for i := range 3 { // as if the first two replies had been lost
		lost, err := r.trySettle(ctx, s)
		if err != nil || lost {
			return fmt.Errorf("settlement %d of 3 equal ones: lost %v, error %v", i+1, lost, err)
		}
	}
	epoch := r.epoch[lane] + 1
	if err := r.lease(ctx); err != nil {
		return err
	}
	l, err := r.held(lane)
	if err != nil {
		return err
	}
	if l.Epoch != epoch || l.Parked.Records != 1 {
		return fmt.Errorf("after a settlement was sent three times: epoch %d, want %d; %d parked records, want 1", l.Epoch, epoch, l.Parked.Records)
	}
	return wantStatus(ctx, env, map[string]int64{"delivered": 1, "dead": 1, "pending": 3})
}

func settleRepeatChanged(ctx context.Context, env Env) error {
	r, b, err := front(ctx, env)
	if err != nil {
		return err
	}
	first := store.Settlement{Lane: b.Lane, Delivered: 1}
	if lost, err := r.trySettle(ctx, first); err != nil || lost {
		return fmt.Errorf("the first settlement: lost %v, error %v", lost, err)
	}
	for name, s := range map[string]store.Settlement{
		"a position": {Lane: b.Lane, Position: b.Position, Delivered: 1}, "another count": {Lane: b.Lane, Delivered: 2}, "a park": greedy(b),
	} {
		lost, err := r.trySettle(ctx, s)
		if err != nil {
			return err
		}
		if !lost {
			return fmt.Errorf("a settlement with %s passes for the committed one of its epoch", name)
		}
	}
	if lost, err := r.trySettle(ctx, first); err != nil || lost {
		return fmt.Errorf("the first settlement repeated: lost %v, error %v", lost, err)
	}
	return nil
}

func settleManyLanes(ctx context.Context, env Env) error {
	r, all, err := everywhere(ctx, env, manyKeys())
	if err != nil {
		return err
	}
	var settlements []store.Settlement
	for lane, b := range all { // in no order
		settlements = append(settlements, store.Settlement{
			BootID: r.boot, Lane: lane, Epoch: r.epoch[lane], Position: b.Position, Delivered: len(b.Messages),
		})
	}
	lost, err := r.st.Settle(ctx, settlements)
	if err != nil || len(lost) > 0 {
		return fmt.Errorf("settle of %d lanes: lost %v, error %v", len(settlements), lost, err)
	}
	if err := r.lease(ctx); err != nil {
		return err
	}
	got, err := r.take(ctx, 10)
	if err != nil {
		return err
	}
	return same("after all lanes were settled", got, nil)
}

func settleDelivered(ctx context.Context, env Env) error {
	r, _, err := filled(ctx, env, 7)
	if err != nil {
		return err
	}
	if err := commit(ctx, env, series("", "free", 20)...); err != nil {
		return err
	}
	if _, err := r.take(ctx, 3); err != nil {
		return err
	}
	return wantStatus(ctx, env, map[string]int64{"delivered": 27, "pending": 0})
}

func settleNothing(ctx context.Context, env Env) error {
	lost, err := env.Store().Settle(ctx, nil)
	if err != nil || len(lost) > 0 {
		return fmt.Errorf("settle of no lane: lost %v, error %v", lost, err)
	}
	return nil
}

// wantStatus compares counts in Status: "delivered", "pending" or the name of a
// parked state.
func wantStatus(ctx context.Context, env Env, want map[string]int64) error {
	status, err := env.Office().Admin.Status(ctx)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	var errs []error
	for name, n := range want {
		got := status.Parked[name]
		switch name {
		case "delivered":
			got = status.Delivered
		case "pending":
			got = status.Pending
		}
		if got != n {
			errs = append(errs, fmt.Errorf("status counts %d %s, want %d", got, name, n))
		}
	}
	return errors.Join(errs...)
}
