package relay

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/store"
)

// stops passes on what the store knows of stopped destinations to the sink, and
// what the sink has learnt of them to the store. The engine does not know of it: a
// stopped destination is one that is down.
type stops struct {
	r    *Relay
	sink *broker.Stops // nil: the sink has no single destinations
	// keep is the store's Info.SetStop; nil: nobody keeps them, and what the sink knows is all.
	keep    func(context.Context, store.SetStop) (bool, error)
	known   []string // as of the last heartbeat, which are made one at a time
	writing atomic.Bool
}

func newStops(r *Relay) *stops {
	return &stops{r: r, sink: r.sink.Info().Stops, keep: r.store.Info().SetStop}
}

// told takes the stops that a heartbeat has brought. It returns what has to be
// written, nil for nothing: that must not hold up the heartbeat.
func (s *stops) told(stopped []string) (write func(context.Context)) {
	if s.keep == nil {
		return nil
	}
	if !slices.Equal(stopped, s.known) {
		s.known = slices.Clone(stopped)
		s.r.log.Warn("stopped destinations changed", "stopped", stopped)
		if s.sink == nil && len(stopped) > 0 {
			s.r.log.Error("stopping unsupported by the sink", "stopped", stopped)
		}
	}
	if s.sink == nil {
		return nil
	}
	s.sink.Set(stopped)
	gone := s.sink.Gone()
	if len(gone) == 0 || !s.writing.CompareAndSwap(false, true) {
		return nil
	}
	return func(ctx context.Context) {
		defer s.writing.Store(false)
		s.write(ctx, gone)
	}
}

// stopWrite is how long the store may take to note one stop. It is tried again
// with every heartbeat.
const stopWrite = 10 * time.Second

func (s *stops) write(ctx context.Context, gone []broker.Gone) {
	ctx, cancel := context.WithTimeout(ctx, stopWrite)
	defer cancel()
	for _, g := range gone {
		_, err := s.keep(ctx, store.SetStop{Destination: g.Destination, Actor: "postrider", Reason: g.Reason})
		if ctx.Err() != nil { // the relay ends: who comes next learns it from the destination
			return
		}
		if err != nil {
			s.r.log.Warn("destination stop not recorded", "destination", g.Destination, "error", err)
			return
		}
		s.r.log.Error("destination stopped", "destination", g.Destination, "reason", g.Reason)
	}
}
