package relay_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
)

// stopStore records stops beside a memstore; its first write fails.
type stopStore struct {
	*memstore.Store
	mu     sync.Mutex
	stops  []string
	writes int
}

func (s *stopStore) Lease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	g, err := s.Store.Lease(ctx, req)
	s.mu.Lock()
	defer s.mu.Unlock()
	g.Stopped = slices.Clone(s.stops)
	return g, err
}

func (s *stopStore) Info() store.Info {
	info := s.Store.Info()
	info.SetStop = s.setStop
	return info
}

func (s *stopStore) setStop(_ context.Context, req store.SetStop) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writes++; s.writes == 1 {
		return false, errors.New("the database is away")
	}
	s.stops = append(s.stops, req.Destination)
	return true, nil
}

func (s *stopStore) set(stops ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stops = stops
}

// stopSink has one destination, which is gone when it is asked.
type stopSink struct {
	mu   sync.Mutex
	gone bool
	held bool
	asks int
}

func (s *stopSink) Info() broker.Info {
	return broker.Info{Name: "stop", Stops: &broker.Stops{Set: s.set, Gone: s.goneNow}}
}

func (s *stopSink) Deliver(_ context.Context, batch broker.Batch) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone && !s.held {
		s.asks++
		s.gone = true
	}
	errs := make([]error, len(batch.Messages))
	for i := range errs {
		errs[i] = broker.Outage(errors.New("gone"), "HTTP_410", "")
	}
	return errs
}

func (s *stopSink) set(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := slices.Contains(names, "shop")
	if s.held && !held {
		s.gone = false
	}
	s.held = held
}

func (s *stopSink) goneNow() []broker.Gone {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone || s.held {
		return nil
	}
	return []broker.Gone{{Destination: "shop", Reason: "410"}}
}

func (s *stopSink) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asks
}

// TestADestinationThatIsGoneStaysStopped: the store records a destination's final refusal,
// even if its first write fails. Other and later relays send the destination nothing
// until a person resumes it.
//
// Promises: S
func TestADestinationThatIsGoneStaysStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(&memstore.Options{Lanes: 1})
		enqueue(t, mem, 1, 1, map[string]int64{})
		st, first := &stopStore{Store: mem}, &stopSink{}
		stop := start(t, relay.New(st, first, nil))
		time.Sleep(5 * time.Second)
		stop()
		if first.asked() != 1 || len(st.stops) != 1 || st.writes != 2 {
			t.Fatalf("asked %d times, stopped %q after %d writes", first.asked(), st.stops, st.writes)
		}
		second := &stopSink{}
		stop = start(t, relay.New(&stopStore{Store: mem.Pipe(memstore.DefaultPipe), stops: st.stops}, second, nil))
		time.Sleep(5 * time.Second)
		if second.asked() != 0 {
			t.Errorf("a later relay asked %d times", second.asked())
		}
		stop()
		third := &stopSink{}
		stop = start(t, relay.New(st, third, nil))
		time.Sleep(time.Second)
		st.set()
		time.Sleep(20 * time.Second)
		stop()
		if third.asked() == 0 {
			t.Error("nobody asked after the destination was resumed")
		}
	})
}
