package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider/store"
)

func leaseCases() []Case {
	return []Case{
		{
			Name: "lease/all-to-one", Run: leaseAllToOne,
			Promise: "the only live instance holds every lane, and the grant has the number of lanes and the database's identity",
		},
		{
			Name: "lease/exclusive", Run: leaseExclusive,
			Promise: "a lane is never held by two live instances",
		},
		{
			Name: "lease/exclusive-at-once", Run: leaseExclusiveAtOnce,
			Promise: "a lane is never held by two live instances, even if they ask at the same moment",
		},
		{
			Name: "lease/fair-share", Run: leaseFairShare,
			Promise: "an instance takes lanes up to ceil(lanes / live instances)",
		},
		{
			Name: "lease/max-lanes", Run: leaseMaxLanes,
			Promise: "an instance never holds more lanes than it asked for",
		},
		{
			Name: "lease/only", Run: leaseOnly,
			Promise: "with Only set, no other lane is taken, and all of these are, whatever others want",
		},
		{
			Name: "lease/observe", Run: leaseObserve,
			Promise: "an observing instance keeps its lanes and takes no new ones",
		},
		{
			Name: "lease/renew-keeps", Run: leaseRenewKeeps,
			Promise: "renewing changes neither the lanes held nor their epochs",
		},
		{
			Name: "lease/crossed", Run: leaseCrossed,
			Promise: "a heartbeat that crosses the caller's own settlements keeps every lane, with its new epoch and position",
		},
		{
			Name: "lease/renew-extends", Run: leaseRenewExtends,
			Promise: "a heartbeat that is renewed in time does not expire",
		},
		{
			Name: "lease/expiry", Run: leaseExpiry,
			Promise: "the lanes of an instance whose heartbeat has expired are free, and taking them raises their epochs",
		},
		{
			Name: "lease/lapse", Run: leaseLapse,
			Promise: "a grant has the end of the first lease of another instance, ignoring the caller's own and expired ones",
		},
		{
			Name: "lease/release", Run: leaseRelease,
			Promise: "a released lane is free at once, and taking it raises its epoch",
		},
		{
			Name: "lease/release-old-epoch", Run: leaseReleaseOldEpoch,
			Promise: "a release with an old epoch changes nothing",
		},
		{
			Name: "lease/release-foreign", Run: leaseReleaseForeign,
			Promise: "an instance cannot release another's lane",
		},
		{
			Name: "lease/leave", Run: leaseLeave,
			Promise: "an instance that leaves releases all its lanes and is removed",
		},
		{
			Name: "lease/identity", Run: leaseIdentity,
			Promise: "the identity of an unchanged database is the same for every caller at any time",
		},
		{
			Name: "wait/limit", Run: waitLimit,
			Promise: "Wait returns without error when its limit has passed",
		},
		{
			Name: "wait/context", Run: waitContext,
			Promise: "Wait returns the context's error when the context ends",
		},
	}
}

func leaseAllToOne(ctx context.Context, env Env) error {
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	switch g := r.grant; {
	case g.Total != env.Features().Lanes:
		return fmt.Errorf("Total is %d, want the outbox's %d lanes", g.Total, env.Features().Lanes)
	case g.Instances != 1:
		return fmt.Errorf("Instances is %d, want 1", g.Instances)
	case g.Identity == "":
		return errors.New("Identity is empty")
	case len(g.Requests) != 0:
		return fmt.Errorf("a fresh outbox has %d requests", len(g.Requests))
	}
	info := r.st.Info()
	if info.Name == "" || info.Pipe == "" {
		return fmt.Errorf("Info lacks the store's name or its pipe: %+v", info)
	}
	return nil
}

func leaseExclusive(ctx context.Context, env Env) error {
	a, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	b := newRelay(env, "b")
	for range 2 {
		if err := b.lease(ctx); err != nil {
			return err
		}
		if len(b.grant.Lanes) != 0 {
			return fmt.Errorf("b was granted lanes %v, which a holds", lanesOf(b.grant))
		}
		if b.grant.Instances != 2 {
			return fmt.Errorf("Instances is %d, want 2", b.grant.Instances)
		}
	}
	if err := a.lease(ctx); err != nil {
		return err
	}
	if len(a.grant.Lanes) != env.Features().Lanes {
		return fmt.Errorf("a holds only %v after b's request", lanesOf(a.grant))
	}
	return nil
}

func leaseExclusiveAtOnce(ctx context.Context, env Env) error {
	relays := []*relay{newRelay(env, "a"), newRelay(env, "b"), newRelay(env, "c"), newRelay(env, "d")}
	errs := make([]error, len(relays))
	for range 3 {
		var all sync.WaitGroup
		for i, r := range relays {
			all.Go(func() { errs[i] = errors.Join(errs[i], r.lease(ctx)) })
		}
		all.Wait()
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return disjoint(env.Features().Lanes, relays...)
}

// disjoint checks that the grants share no lane and together have every lane.
func disjoint(total int, relays ...*relay) error {
	owner := map[store.Lane]string{}
	for _, r := range relays {
		for _, lane := range lanesOf(r.grant) {
			if other, taken := owner[lane]; taken {
				return fmt.Errorf("lane %d is held by %s and by %s", lane, other, r.boot)
			}
			owner[lane] = r.boot
		}
	}
	if len(owner) != total {
		return fmt.Errorf("%d of %d lanes have an owner", len(owner), total)
	}
	return nil
}

func leaseFairShare(ctx context.Context, env Env) error {
	a, b := newRelay(env, "a"), newRelay(env, "b")
	for _, r := range []*relay{a, b} {
		if err := r.lease(ctx, observe); err != nil {
			return err
		}
	}
	lanes := env.Features().Lanes
	for i, r := range []*relay{a, b} {
		if err := r.lease(ctx); err != nil {
			return err
		}
		want := (lanes + 1) / 2
		if i == 1 {
			want = lanes - want
		}
		if len(r.grant.Lanes) != want {
			return fmt.Errorf("%s holds %d of %d lanes with two instances alive, want %d", r.boot, len(r.grant.Lanes), lanes, want)
		}
	}
	return disjoint(lanes, a, b)
}

func leaseMaxLanes(ctx context.Context, env Env) error {
	r := newRelay(env, "a")
	for range 2 {
		if err := r.lease(ctx, func(req *store.LeaseRequest) { req.MaxLanes = 1 }); err != nil {
			return err
		}
		if len(r.grant.Lanes) != 1 {
			return fmt.Errorf("MaxLanes 1 granted lanes %v", lanesOf(r.grant))
		}
	}
	return nil
}

func leaseOnly(ctx context.Context, env Env) error {
	watcher, err := solo(ctx, env, "watcher")
	if err != nil {
		return err
	}
	all := lanesOf(watcher.grant)
	slices.Sort(all)
	if err := watcher.leave(ctx); err != nil {
		return err
	}
	last := len(all) - 1
	for boot, want := range [][]store.Lane{all[last:], all[:last]} {
		r := newRelay(env, fmt.Sprint("relay ", boot))
		if err := r.lease(ctx, func(req *store.LeaseRequest) { req.Only = want }); err != nil {
			return err
		}
		got := lanesOf(r.grant)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("Only lanes %v granted lanes %v", want, got)
		}
	}
	return nil
}

func leaseObserve(ctx context.Context, env Env) error {
	r := newRelay(env, "a")
	if err := r.lease(ctx, observe); err != nil {
		return err
	}
	if len(r.grant.Lanes) != 0 {
		return fmt.Errorf("an observer took lanes %v", lanesOf(r.grant))
	}
	if err := r.lease(ctx, func(req *store.LeaseRequest) { req.MaxLanes = 1 }); err != nil {
		return err
	}
	if err := r.lease(ctx, observe); err != nil {
		return err
	}
	if len(r.grant.Lanes) != 1 {
		return fmt.Errorf("an observer that held one lane now has %v", lanesOf(r.grant))
	}
	return nil
}

func leaseRenewKeeps(ctx context.Context, env Env) error {
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	before := r.grant
	if err := r.lease(ctx); err != nil {
		return err
	}
	if !slices.Equal(lanesOf(before), lanesOf(r.grant)) {
		return fmt.Errorf("renewal changed lanes %v to %v", lanesOf(before), lanesOf(r.grant))
	}
	for i, l := range r.grant.Lanes {
		if l.Epoch != before.Lanes[i].Epoch {
			return fmt.Errorf("renewal moved lane %d from epoch %d to %d", l.Lane, before.Lanes[i].Epoch, l.Epoch)
		}
	}
	return nil
}

// leaseCrossed renews with the epochs of before the caller's settlements: a lane that is left out
// would be lost to its owner.
func leaseCrossed(ctx context.Context, env Env) error {
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	known, before := maps.Clone(r.epoch), r.grant.Lanes
	for _, l := range before {
		if err := r.settle(ctx, store.Settlement{Lane: l.Lane, Position: l.Position}); err != nil {
			return err
		}
	}
	settled := maps.Clone(r.epoch)
	if err := r.lease(ctx, func(req *store.LeaseRequest) { req.Known = known }); err != nil {
		return err
	}
	for _, l := range before {
		now, err := r.held(l.Lane)
		switch {
		case err != nil:
			return fmt.Errorf("renewal beside a settlement: %w", err)
		case now.Epoch != settled[l.Lane] || !bytes.Equal(now.Position, l.Position):
			return fmt.Errorf("lane %d is granted with epoch %d and position %x, was settled to epoch %d and position %x", l.Lane, now.Epoch, now.Position, settled[l.Lane], l.Position)
		}
	}
	return nil
}

func leaseRenewExtends(ctx context.Context, env Env) error {
	for unit := tick(env); ; unit *= 2 {
		a := newRelay(env, "a")
		a.ttl = 8 * unit
		if err := a.lease(ctx); err != nil {
			return err
		}
		if err := env.Advance(ctx, 4*unit); err != nil {
			return err
		}
		renewed := time.Now()
		if err := a.lease(ctx); err != nil {
			return err
		}
		for range 2 { // past the end of the first heartbeat, well before the end of the second
			if err := env.Advance(ctx, 2*unit+unit/4); err != nil {
				return err
			}
		}
		b := newRelay(env, "b")
		if err := b.lease(ctx); err != nil {
			return err
		}
		switch {
		case len(b.grant.Lanes) == 0:
			return nil
		case time.Since(renewed) < a.ttl:
			return fmt.Errorf("b took lanes %v although a had renewed its heartbeat", lanesOf(b.grant))
		}
		// On a slow machine the second heartbeat has expired too: repeat everything with longer leases.
		if err := b.leave(ctx); err != nil {
			return err
		}
	}
}

func leaseExpiry(ctx context.Context, env Env) error {
	a := newRelay(env, "a")
	a.ttl = tick(env)
	if err := a.lease(ctx); err != nil {
		return err
	}
	if err := env.Advance(ctx, 2*tick(env)); err != nil {
		return err
	}
	b, err := solo(ctx, env, "b")
	if err != nil {
		return fmt.Errorf("after a's heartbeat has expired: %w", err)
	}
	if b.grant.Instances != 1 {
		return fmt.Errorf("Instances is %d, want only b", b.grant.Instances)
	}
	return risen(a, b)
}

func leaseLapse(ctx context.Context, env Env) error {
	a, b, short := newRelay(env, "a"), newRelay(env, "b"), newRelay(env, "c")
	b.ttl, short.ttl = 2*longTTL, tick(env)
	if err := short.lease(ctx); err != nil {
		return err
	}
	if err := env.Advance(ctx, 2*tick(env)); err != nil {
		return err
	}
	for _, step := range []struct {
		who  *relay
		want time.Duration // at most, and more than half of it
	}{{b, 0}, {a, b.ttl}, {b, a.ttl}} {
		if err := step.who.lease(ctx); err != nil {
			return err
		}
		if got := step.who.grant.Lapse; got > step.want || step.want > 0 && got <= step.want/2 {
			return fmt.Errorf("%s gets %v as the end of the first other lease, want at most %v", step.who.boot, got, step.want)
		}
	}
	return nil
}

// risen checks that every lane of now has a higher epoch than before.
func risen(before, now *relay) error {
	for lane, epoch := range now.epoch {
		if old, had := before.epoch[lane]; had && epoch <= old {
			return fmt.Errorf("lane %d was taken at epoch %d, not above its last owner's %d", lane, epoch, old)
		}
	}
	return nil
}

func leaseRelease(ctx context.Context, env Env) error {
	a, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	first := a.grant.Lanes[0]
	old := &relay{epoch: map[store.Lane]int64{first.Lane: first.Epoch}}
	err = a.lease(ctx, observe, func(req *store.LeaseRequest) {
		req.Release = []store.Release{{Lane: first.Lane, Epoch: first.Epoch}}
	})
	if err != nil {
		return err
	}
	if slices.Contains(lanesOf(a.grant), first.Lane) || len(a.grant.Lanes) != env.Features().Lanes-1 {
		return fmt.Errorf("a released lane %d but still holds %v", first.Lane, lanesOf(a.grant))
	}
	b := newRelay(env, "b")
	if err := b.lease(ctx); err != nil {
		return err
	}
	if got := lanesOf(b.grant); !slices.Equal(got, []store.Lane{first.Lane}) {
		return fmt.Errorf("lane %d was released, but b was granted %v", first.Lane, got)
	}
	return risen(old, b)
}

func leaseReleaseOldEpoch(ctx context.Context, env Env) error {
	a, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	first := a.grant.Lanes[0]
	if err := a.settle(ctx, store.Settlement{Lane: first.Lane}); err != nil {
		return err
	}
	err = a.lease(ctx, observe, func(req *store.LeaseRequest) {
		req.Release = []store.Release{{Lane: first.Lane, Epoch: first.Epoch}}
	})
	if err != nil {
		return err
	}
	_, err = a.held(first.Lane)
	return err
}

func leaseReleaseForeign(ctx context.Context, env Env) error {
	a, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	first := a.grant.Lanes[0]
	b := newRelay(env, "b")
	err = b.lease(ctx, func(req *store.LeaseRequest) {
		req.Release = []store.Release{{Lane: first.Lane, Epoch: first.Epoch}}
	})
	if err != nil {
		return err
	}
	if len(b.grant.Lanes) != 0 {
		return fmt.Errorf("b released a's lane %d and holds %v", first.Lane, lanesOf(b.grant))
	}
	if err := a.lease(ctx, observe); err != nil {
		return err
	}
	_, err = a.held(first.Lane)
	return err
}

func leaseLeave(ctx context.Context, env Env) error {
	a, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	old := &relay{epoch: map[store.Lane]int64{}}
	for _, l := range a.grant.Lanes {
		old.epoch[l.Lane] = l.Epoch
	}
	if err := a.leave(ctx); err != nil {
		return err
	}
	if len(a.grant.Lanes) != 0 {
		return fmt.Errorf("a left and still holds %v", lanesOf(a.grant))
	}
	b, err := solo(ctx, env, "b")
	if err != nil {
		return fmt.Errorf("after a left: %w", err)
	}
	if b.grant.Instances != 1 {
		return fmt.Errorf("Instances is %d after a left", b.grant.Instances)
	}
	return risen(old, b)
}

func leaseIdentity(ctx context.Context, env Env) error {
	a, b := newRelay(env, "a"), newRelay(env, "b")
	for _, r := range []*relay{a, b, a} {
		if err := r.lease(ctx); err != nil {
			return err
		}
		if a.grant.Identity != r.grant.Identity {
			return fmt.Errorf("identity %q and %q for one database", a.grant.Identity, r.grant.Identity)
		}
	}
	status, err := env.Office().Admin.Status(ctx)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if status.Identity != a.grant.Identity {
		return fmt.Errorf("identity is %q in Status and %q in a grant", status.Identity, a.grant.Identity)
	}
	return nil
}

func waitLimit(ctx context.Context, env Env) error {
	if err := env.Store().Wait(ctx, 1); err != nil {
		return fmt.Errorf("Wait of one nanosecond: %w", err)
	}
	return nil
}

func waitContext(ctx context.Context, env Env) error {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	if err := env.Store().Wait(ctx, longTTL); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("Wait with a cancelled context returned %v", err)
	}
	return nil
}
