package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// deadEvery is how often Run looks for old dead letters.
const deadEvery = time.Hour

// PipeDead is a pipe whose dead letters another pipe's keeper discards.
type PipeDead struct {
	Orders   ops.Orders    // those of the pipe
	KeepDead time.Duration // as in [KeeperOptions], above 0
}

// DiscardDead orders the lanes' owners to discard the dead letters of the keeper's pipe that
// were neither parked nor tried for KeepDead, and those of Pipes by their own age. It returns
// their number, which is also in the journal. It does nothing unless an age is set, because the
// policy is opt-in. Two concurrent keepers store two orders; the second finds no dead letter left.
func (k *Keeper) DiscardDead(ctx context.Context) (int64, error) {
	pipes := k.opts.Pipes
	if k.opts.KeepDead > 0 {
		if err := k.office.Need(ops.CanOrder); err != nil {
			return 0, err
		}
		pipes = append([]PipeDead{{k.office.Orders, k.opts.KeepDead}}, pipes...)
	}
	var sum int64
	var failed []error
	for _, p := range pipes { // one that fails does not keep the others waiting
		n, err := p.discard(ctx)
		sum, failed = sum+n, append(failed, err)
	}
	return sum, errors.Join(failed...)
}

func (p PipeDead) discard(ctx context.Context) (int64, error) {
	_, plan, err := p.Orders.Order(ctx, ops.Order{
		Kind: store.ActDiscard, Match: ops.Match{IdleFor: p.KeepDead}, Actor: "postrider",
		Reason: fmt.Sprintf("policy: dead letters are kept for %s", p.KeepDead),
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("discard old dead letters: %w", err)
	}
	return plan.Records, nil
}

// discardDead runs DiscardDead every deadEvery and logs the result.
func (k *Keeper) discardDead(ctx context.Context) error {
	if time.Since(k.deadAt) < deadEvery {
		return nil
	}
	n, err := k.DiscardDead(ctx)
	if n > 0 {
		k.opts.Logger.WarnContext(ctx, "old dead letters discarded", "records", n)
	}
	if err == nil {
		k.deadAt = time.Now()
	}
	return err
}
