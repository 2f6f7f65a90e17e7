package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/postrider/postrider/broker"
)

// fairSink lets one relay of a process begin few deliveries at a time. A relay
// with a backlog has one for each of its lanes: dozens of goroutines with work for
// milliseconds stand before those of the other relays at every step of theirs.
// A call that is not through after a moment waits for its broker and computes
// nothing: it no longer counts, so that a slow destination holds up nobody.
type fairSink struct {
	broker.Sink
	begun chan struct{}
}

const (
	fairCalls = 2
	fairAfter = 20 * time.Millisecond
)

func newFairSink(s broker.Sink) *fairSink {
	return &fairSink{Sink: s, begun: make(chan struct{}, fairCalls)}
}

// Deliver waits for its turn. A call whose context ends before has sent nothing.
func (s *fairSink) Deliver(ctx context.Context, batch broker.Batch) []error {
	select {
	case s.begun <- struct{}{}:
	case <-ctx.Done():
		errs := make([]error, len(batch.Messages))
		for i := range errs {
			errs[i] = broker.Outage(ctx.Err(), "turn", "")
		}
		return errs
	}
	var once sync.Once
	end := func() { once.Do(func() { <-s.begun }) }
	timer := time.AfterFunc(fairAfter, end)
	defer func() { timer.Stop(); end() }()
	return s.Sink.Deliver(ctx, batch)
}
