package admin

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/store"
)

// Partitioner returns the side of ad that keeps the outbox in partitions. A
// store without any answers with an error that matches ErrCannot.
func Partitioner(ad store.Admin) (store.Partitioner, error) {
	if p, ok := ad.(store.Partitioner); ok {
		return p, nil
	}
	return nil, fmt.Errorf("%w: it has no partitions; PostgreSQL has", ErrCannot)
}

// heldByBooks is what a store says when rows are yet to be counted.
const heldByBooks = "(books)"

// Tend does what is due to the partitions. Where the books have yet to count the
// rows of one that is to go, they do it first.
func Tend(ctx context.Context, p store.Partitioner, req store.TendRequest) (store.Tended, error) {
	done, err := p.Tend(ctx, req)
	books, ok := p.(store.Retainer)
	if err != nil || !ok || done.HeldBy != heldByBooks {
		return done, err
	}
	if _, err := books.Audit(ctx, store.AuditRequest{}); err != nil {
		return done, fmt.Errorf("count before a partition goes: %w", err)
	}
	again, err := p.Tend(ctx, req)
	again.Made += done.Made
	again.Dropped += done.Dropped
	again.Rows += done.Rows
	again.Rolled = again.Rolled || done.Rolled
	return again, err
}
