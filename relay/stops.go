package relay

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/store"
)

// stops passes stopped destinations recorded in the store to the sink, and newly
// stopped ones of the sink to the store. The engine does not know stops: for it, a
// stopped destination is down.
type stops struct {
	r    *Relay
	sink *broker.Stops // nil: the sink has no single destinations
	// keep is the store's Info.SetStop; nil: stops are not recorded, only the sink knows them.
	keep    func(context.Context, store.SetStop) (bool, error)
	known   []string // as of the last heartbeat, which are made one at a time
	writing atomic.Bool
}

func newStops(r *Relay) *stops {
	return &stops{r: r, sink: r.sink.Info().Stops, keep: r.store.Info().SetStop}
}

// told takes the stops from a heartbeat. It returns a function that writes new ones, or
// nil: writing must not delay the heartbeat.
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

// stopWrite bounds the time for recording one stop. It is tried again
// with every heartbeat.
const stopWrite = 10 * time.Second

func (s *stops) write(ctx context.Context, gone []broker.Gone) {
	ctx, cancel := context.WithTimeout(ctx, stopWrite)
	defer cancel()
	for _, g := range gone {
		_, err := s.keep(ctx, store.SetStop{Destination: g.Destination, Actor: "postrider", Reason: g.Reason})
		if ctx.Err() != nil { // the relay ends: the next one learns it from the destination
			return
		}
		if err != nil {
			s.r.log.Warn("destination stop not recorded", "destination", g.Destination, "error", err)
			return
		}
		s.r.log.Error("destination stopped", "destination", g.Destination, "reason", g.Reason)
	}
}
