package relay

import (
	"context"
	"maps"
	"slices"
	"sync"
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
	writing atomic.Bool

	mu     sync.Mutex
	known  []string // as of the last heartbeat
	beats  int      // heartbeats begun
	newest int      // of those that were answered
	// recorded has the destinations whose stops this relay has recorded, and the heartbeats
	// begun by then. Until one that began later ends, the store's answers may lack them.
	recorded map[string]int
}

func newStops(r *Relay) *stops {
	return &stops{r: r, sink: r.sink.Info().Stops, keep: r.store.Info().SetStop, recorded: make(map[string]int)}
}

// begin counts a heartbeat that is about to be made, and returns its number.
func (s *stops) begin() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beats++
	return s.beats
}

// told takes the stops from the answer to a heartbeat. Two may be in flight, because the
// engine drops one after a failover: an answer older than another one is ignored. It returns
// a function that writes new stops, or nil: writing must not delay the heartbeat.
func (s *stops) told(beat int, stopped []string) (write func(context.Context)) {
	if s.keep == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if beat < s.newest {
		return nil
	}
	s.newest = beat
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
	maps.DeleteFunc(s.recorded, func(_ string, beats int) bool { return beats < beat })
	s.set()
	gone := s.sink.Gone()
	if len(gone) == 0 || !s.writing.CompareAndSwap(false, true) {
		return nil
	}
	return func(ctx context.Context) {
		defer s.writing.Store(false)
		s.write(ctx, gone)
	}
}

// set passes the stops to the sink. The caller holds mu.
func (s *stops) set() {
	s.sink.Set(slices.AppendSeq(slices.Clone(s.known), maps.Keys(s.recorded)))
}

// noted marks a stop as recorded. The sink must learn of it at once: a person may resume the
// destination before the next heartbeat, which then names it no more.
func (s *stops) noted(destination string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recorded[destination] = s.beats
	s.set()
}

// stopWrite bounds the time for recording one stop. It is tried again
// with every heartbeat.
const stopWrite = 10 * time.Second

func (s *stops) write(ctx context.Context, gone []broker.Gone) {
	ctx, cancel := context.WithTimeout(ctx, stopWrite)
	defer cancel()
	for _, g := range gone {
		if !slices.Contains(s.sink.Gone(), g) { // another relay has recorded it meanwhile
			continue
		}
		_, err := s.keep(ctx, store.SetStop{Destination: g.Destination, Actor: "postrider", Reason: g.Reason})
		if ctx.Err() != nil { // the relay ends: the next one learns it from the destination
			return
		}
		if err != nil {
			s.r.log.Warn("destination stop not recorded", "destination", g.Destination, "error", err)
			return
		}
		s.noted(g.Destination)
		s.r.log.Error("destination stopped", "destination", g.Destination, "reason", g.Reason)
	}
}
