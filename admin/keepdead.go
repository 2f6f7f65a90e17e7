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

// DiscardDead orders the lanes' owners to discard the dead letters of the
// keeper's pipe that were neither parked nor tried for KeepDead, and returns their
// number, which is also in the journal. It does nothing unless KeepDead
// is set, because the policy is opt-in. Two concurrent keepers store two
// orders; the second finds no dead letter left.
func (k *Keeper) DiscardDead(ctx context.Context) (int64, error) {
	if k.opts.KeepDead <= 0 {
		return 0, nil
	}
	if err := k.office.Need(ops.CanOrder); err != nil {
		return 0, err
	}
	_, plan, err := k.office.Orders.Order(ctx, ops.Order{
		Kind: store.ActDiscard, Match: ops.Match{IdleFor: k.opts.KeepDead}, Actor: "postrider",
		Reason: fmt.Sprintf("policy: dead letters are kept for %s", k.opts.KeepDead),
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
	if k.opts.KeepDead <= 0 || time.Since(k.deadAt) < deadEvery {
		return nil
	}
	n, err := k.DiscardDead(ctx)
	if err != nil {
		return err
	}
	k.deadAt = time.Now()
	if n > 0 {
		k.opts.Logger.WarnContext(ctx, "old dead letters discarded", "records", n, "kept", k.opts.KeepDead)
	}
	return nil
}
