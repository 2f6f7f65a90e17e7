package consumer

import (
	"context"
	"time"
)

// turns lets handlers run side by side, or one alone.
//
// A handler that ends the process takes the ones beside it down, and their
// attempts with them. Who was there at several such ends runs alone, so that the
// next end is counted for the guilty one only.
type turns struct {
	seats chan struct{} // one token per handler that runs
	alone chan struct{} // held by the one that gathers every seat
}

func newTurns(n int) *turns {
	return &turns{seats: make(chan struct{}, n), alone: make(chan struct{}, 1)}
}

// take waits for a seat beside others; false when ctx ended first.
func (t *turns) take(ctx context.Context) bool {
	select {
	case t.seats <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t *turns) leave() { <-t.seats }

// takeAll waits until nobody else runs, but not longer than limit: a handler
// that hangs must not stop everybody. The returned function gives back what was
// taken.
func (t *turns) takeAll(ctx context.Context, limit time.Duration) (leave func()) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case t.alone <- struct{}{}:
	case <-ctx.Done():
		return func() {}
	}
	taken := 0
	for taken < cap(t.seats) && t.take(ctx) {
		taken++
	}
	return func() {
		for range taken {
			t.leave()
		}
		<-t.alone
	}
}
