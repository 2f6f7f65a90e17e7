package relay_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
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

func (s *stopSink) stopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
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

// TestAResumeBeforeTheNextHeartbeat: a person resumes a destination as soon as its stop is
// recorded, before the relay's next heartbeat. The destination is tried again.
//
// Promises: S
func TestAResumeBeforeTheNextHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(&memstore.Options{Lanes: 1})
		enqueue(t, mem, 1, 1, map[string]int64{})
		st, sink := &stopStore{Store: mem, writes: 1}, &stopSink{}
		resume := sync.OnceFunc(func() { st.set() })
		stop := start(t, relay.New(recordingStore{st, resume}, sink, nil))
		time.Sleep(20 * time.Second)
		stop()
		if n := sink.asked(); n != 2 || len(st.stops) != 1 {
			t.Errorf("the destination was asked %d times, stopped %q", n, st.stops)
		}
	})
}

// recordingStore calls recorded when a stop has been recorded.
type recordingStore struct {
	*stopStore
	recorded func()
}

func (s recordingStore) Info() store.Info {
	info := s.stopStore.Info()
	info.SetStop = func(ctx context.Context, req store.SetStop) (bool, error) {
		changed, err := s.setStop(ctx, req)
		s.recorded()
		return changed, err
	}
	return info
}

// TestAHeartbeatFromBeforeTheStopResumesNothing: a heartbeat reads the stops, and its answer
// arrives after a stop was recorded. The destination stays stopped.
//
// Promises: S
func TestAHeartbeatFromBeforeTheStopResumesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(&memstore.Options{Lanes: 1})
		enqueue(t, mem, 1, 1, map[string]int64{})
		st, sink := &lateStore{stopStore: &stopStore{Store: mem, writes: 1}, read: make(chan struct{}), stopped: make(chan struct{})}, &stopSink{}
		st.stop = sync.OnceFunc(func() { close(st.stopped) })
		stop := start(t, relay.New(st, sink, nil))
		time.Sleep(20 * time.Second)
		stop()
		if n := sink.asked(); n != 1 || len(st.stops) != 1 || !st.late {
			t.Errorf("the destination was asked %d times, stopped %q; a heartbeat was late: %v", n, st.stops, st.late)
		}
	})
}

// lateStore records a stop when a heartbeat has read the stops, and then answers the heartbeat.
type lateStore struct {
	*stopStore
	writing       atomic.Bool
	read, stopped chan struct{}
	stop          func() // closes stopped
	late          bool
}

func (s *lateStore) Lease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	g, err := s.stopStore.Lease(ctx, req)
	if s.writing.Load() && !s.late {
		s.late = true
		close(s.read)
		<-s.stopped
		time.Sleep(time.Millisecond) // the relay has learned that the stop is recorded
	}
	return g, err
}

func (s *lateStore) Info() store.Info {
	info := s.stopStore.Info()
	info.SetStop = func(ctx context.Context, req store.SetStop) (bool, error) {
		s.writing.Store(true)
		<-s.read
		defer s.stop()
		return s.setStop(ctx, req)
	}
	return info
}

// TestTheOlderOfTwoHeartbeatsResumesNothing: a relay drops a heartbeat in flight and makes
// another one, because the database has failed over. The answer to the first one arrives last
// and lacks a stop. The destination stays stopped.
//
// Promises: C
func TestTheOlderOfTwoHeartbeatsResumesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(&memstore.Options{Lanes: 1})
		st, sink := &slowStore{stopStore: &stopStore{Store: mem}, held: make(chan struct{})}, &stopSink{}
		stop := start(t, relay.New(st, sink, nil))
		time.Sleep(time.Second) // the heartbeat is in flight
		st.set("shop")
		st.failedOver.Store(true)
		time.Sleep(100 * time.Millisecond)
		if !sink.stopped() {
			t.Error("the second heartbeat has not stopped the destination")
		}
		close(st.held)
		synctest.Wait()
		if !sink.stopped() {
			t.Error("the answer to the first heartbeat has resumed the destination")
		}
		stop()
	})
}

// slowStore answers the second Lease only when held is closed.
type slowStore struct {
	*stopStore
	leases     atomic.Int32
	held       chan struct{}
	failedOver atomic.Bool // the next Read finds another history
}

func (s *slowStore) Lease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	g, err := s.stopStore.Lease(ctx, req)
	if s.leases.Add(1) == 2 {
		<-s.held
	}
	return g, err
}

func (s *slowStore) Read(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	if s.failedOver.CompareAndSwap(true, false) {
		return nil, store.ErrIdentity
	}
	return s.stopStore.Read(ctx, reads)
}
