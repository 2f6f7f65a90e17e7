package relay_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/memstore"
)

// pingable is a sink whose broker can be unreachable.
type pingable struct {
	broker.Sink
	away  atomic.Bool
	pings atomic.Int64
}

var errAway = errors.New("connection refused")

func (s *pingable) Info() broker.Info {
	info := s.Sink.Info()
	info.Ping = s.ping
	return info
}

func (s *pingable) ping(context.Context) error {
	s.pings.Add(1)
	if s.away.Load() {
		return errAway
	}
	return nil
}

func (s *pingable) Deliver(ctx context.Context, batch broker.Batch) []error {
	if s.away.Load() {
		errs := make([]error, len(batch.Messages))
		for i := range errs {
			errs[i] = broker.Outage(errAway, "", "")
		}
		return errs
	}
	return s.Sink.Deliver(ctx, batch)
}

// TestASilentBrokerIsSeenWithoutMessages: a wrong address, or a broker that dies while
// no message is pending, is reported once and makes the relay unready, until the
// broker answers again. A broker that acknowledges messages is not pinged.
//
// Promises: S
func TestASilentBrokerIsSeenWithoutMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, b := memstore.New(&memstore.Options{Lanes: 2}), membroker.New(nil)
		sink := &pingable{Sink: b.Sink()}
		sink.away.Store(true)
		var log lines
		r := relay.New(st, sink, &relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		stop := start(t, r)
		defer stop()
		const down, up = `msg="broker unreachable" broker=memory error="connection refused"`, `msg="broker reachable again" broker=memory after=`
		expect := func(when string, ready bool, downs, ups int) {
			t.Helper()
			if h := r.Health(); h.Ready != ready || (h.Down["sink"] == "") != ready || !h.Alive {
				t.Errorf("%s: health %+v, want ready=%v", when, h, ready)
			}
			if log.count(down) != downs || log.count(up) != ups {
				t.Errorf("%s: %d lines down and %d up, want %d and %d:\n%s", when, log.count(down), log.count(up), downs, ups, log.buf.String())
			}
		}
		time.Sleep(5 * time.Minute)
		expect("never there", false, 1, 0)
		if n := sink.pings.Load(); n > 40 {
			t.Errorf("asked %d times in 5 minutes while it was away", n)
		}
		sink.away.Store(false)
		time.Sleep(15 * time.Second)
		expect("there", true, 1, 1)

		sink.pings.Store(0)
		time.Sleep(time.Hour)
		if n := sink.pings.Load(); n < 100 || n > 120 {
			t.Errorf("asked %d times in an idle hour, want every 30 s", n)
		}
		sink.pings.Store(0)
		next := map[string]int64{}
		for range 60 {
			enqueue(t, st, 4, 2, next)
			time.Sleep(10 * time.Second)
		}
		if n := sink.pings.Load(); n > 1 {
			t.Errorf("asked %d times while messages flowed", n)
		}

		sink.away.Store(true) // while idle, then met by messages too
		time.Sleep(2 * time.Minute)
		expect("away while idle", false, 2, 1)
		enqueue(t, st, 4, 2, next)
		time.Sleep(time.Minute)
		expect("away with messages", false, 2, 1)
		sink.away.Store(false)
		time.Sleep(time.Minute)
		expect("back", true, 2, 2)
		checkLog(t, b, "orders", next)
	})
}

// TestOneMissingTopicLeavesTheRelayReady: a missing topic leaves the relay ready if other
// topics work. Before the first acknowledgement it may be the only topic.
func TestOneMissingTopicLeavesTheRelayReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, b := memstore.New(&memstore.Options{Lanes: 2}), membroker.New(&membroker.Options{Topics: []string{"orders"}})
		r := relay.New(st, b.Sink(), nil)
		stop := start(t, r)
		defer stop()
		if err := st.Enqueue(t.Context(), postrider.Message{Topic: "gone", Key: "g"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if h := r.Health(); h.Ready || !h.Partial || h.Down["destination gone"] == "" {
			t.Errorf("health %+v, want not ready: nothing works", h)
		}
		enqueue(t, st, 4, 2, map[string]int64{})
		time.Sleep(time.Minute)
		if h := r.Health(); !h.Ready || h.Partial || h.Down["destination gone"] == "" {
			t.Errorf("health %+v, want ready with one destination down", h)
		}
	})
}
