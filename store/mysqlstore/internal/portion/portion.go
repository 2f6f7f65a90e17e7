// Package portion makes reads request less after one has timed out.
package portion

import (
	"context"
	"errors"
	"sync"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// Portion is the part of a page that a read requests. It shrinks each time a read times out,
// because the same page would time out again, and doubles with each read that does not.
// It is safe for concurrent use.
type Portion struct {
	mu     sync.Mutex
	halved uint // how often a page is halved
}

// Unbounded is how many records a read without a limit takes from one lane.
const Unbounded = 10_000

const (
	halvedAtOnce = 3  // a page that timed out is followed by one of an eighth
	halvedMost   = 14 // one record of a page without a limit
)

// Of returns reads that request this part of what the given ones do, at least one record.
func (p *Portion) Of(reads []store.LaneRead) []store.LaneRead {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.halved == 0 {
		return reads
	}
	smaller := make([]store.LaneRead, len(reads))
	for i, r := range reads {
		if r.MaxRecords <= 0 {
			r.MaxRecords = Unbounded
		}
		r.MaxRecords = max(r.MaxRecords>>p.halved, 1)
		if r.MaxBytes > 0 {
			r.MaxBytes = max(r.MaxBytes>>p.halved, 1)
		}
		smaller[i] = r
	}
	return smaller
}

// Learn changes the part by the result of a read.
func (p *Portion) Learn(ctx context.Context, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) || db.TimedOut(err):
		p.halved = min(p.halved+halvedAtOnce, halvedMost)
	case err == nil && p.halved > 0:
		p.halved--
	}
}
