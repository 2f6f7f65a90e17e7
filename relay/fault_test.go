package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
)

var errDown = errors.New("connection refused")

// shaky is a store that can be disconnected: before a call, or after it so that its
// answer is lost.
type shaky struct {
	store.Store
	down      atomic.Bool
	loseReply atomic.Int64 // settlements whose answer is lost
}

func (s *shaky) Lease(ctx context.Context, r store.LeaseRequest) (store.Grant, error) {
	if s.down.Load() {
		return store.Grant{}, errDown
	}
	return s.Store.Lease(ctx, r)
}

func (s *shaky) Read(ctx context.Context, r []store.LaneRead) ([]store.Batch, error) {
	if s.down.Load() {
		return nil, errDown
	}
	return s.Store.Read(ctx, r)
}

func (s *shaky) Settle(ctx context.Context, st []store.Settlement) ([]store.Lane, error) {
	if s.down.Load() {
		return nil, errDown
	}
	lost, err := s.Store.Settle(ctx, st)
	if s.loseReply.Add(-1) >= 0 {
		return nil, errDown
	}
	return lost, err
}

// lines collects a logger's lines.
type lines struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), s)
}

func TestAnUnreachableStoreIsWaitedForWithOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(nil)
		st := &shaky{Store: mem}
		st.down.Store(true)
		b := membroker.New(nil)
		next := map[string]int64{}
		enqueue(t, mem, 500, 20, next)
		var log lines
		r := relay.New(st, b.Sink(), &relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		stop := start(t, r)
		time.Sleep(5 * time.Minute)
		if h := r.Health(); !h.Alive || h.Ready || h.Down["store"] == "" {
			t.Errorf("health %+v, want alive and not ready", h)
		}
		st.down.Store(false)
		time.Sleep(6 * time.Second)
		checkLog(t, b, "orders", next)
		st.down.Store(true) // and in the middle
		enqueue(t, mem, 500, 20, next)
		time.Sleep(time.Minute)
		st.down.Store(false)
		time.Sleep(16 * time.Second)
		checkLog(t, b, "orders", next)
		stop()
		if n := log.count("database unreachable"); n != 2 {
			t.Errorf("%d lines report the begin of an outage, want 2:\n%s", n, log.buf.String())
		}
		if n := log.count("database reachable again"); n != 2 {
			t.Errorf("%d lines report the end of an outage, want 2", n)
		}
	})
}

// TestAnotherReasonOfAnOutageIsLogged: a store that cannot be reached and then refuses the
// password has one outage, and each reason a line. A person looks for the second.
func TestAnotherReasonOfAnOutageIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &refusing{Store: memstore.New(nil)}
		var log lines
		r := relay.New(st, membroker.New(nil).Sink(), &relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		stop := start(t, r)
		time.Sleep(5 * time.Second)
		password := error(&store.UnusableError{What: "the server rejected our credentials", Fix: "check user and password"})
		for _, reason := range []*error{&errDown, &password, nil} {
			st.reason.Store(reason)
			time.Sleep(time.Minute)
		}
		stop()
		for _, text := range []string{
			`msg="database unreachable"`, `msg="outage reason changed" part=store error="the server rejected our credentials`, `msg="database reachable again"`,
		} {
			if n := log.count(text); n != 1 {
				t.Errorf("%d lines say %s, want 1:\n%s", n, text, log.buf.String())
			}
		}
	})
}

// refusing is a store whose every call fails with reason while there is one.
type refusing struct {
	store.Store
	reason atomic.Pointer[error]
}

func (s *refusing) failed() error {
	if p := s.reason.Load(); p != nil {
		return *p
	}
	return nil
}

func (s *refusing) Lease(ctx context.Context, r store.LeaseRequest) (store.Grant, error) {
	if err := s.failed(); err != nil {
		return store.Grant{}, err
	}
	return s.Store.Lease(ctx, r)
}

func (s *refusing) Read(ctx context.Context, r []store.LaneRead) ([]store.Batch, error) {
	if err := s.failed(); err != nil {
		return nil, err
	}
	return s.Store.Read(ctx, r)
}

// TestReadinessFollowsTheStore: an outage that returns often has few lines in
// the log, and a probe sees the relay ready a second after each.
func TestReadinessFollowsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &shaky{Store: memstore.New(nil)}
		var log lines
		r := relay.New(st, membroker.New(nil).Sink(), &relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		stop := start(t, r)
		time.Sleep(5 * time.Second)
		for n := range 12 {
			st.down.Store(true)
			time.Sleep(2 * time.Second)
			if h := r.Health(); h.Ready || h.Down["store"] == "" {
				t.Errorf("in outage %d: %+v", n+1, h)
			}
			st.down.Store(false)
			time.Sleep(4 * time.Second)
			if h := r.Health(); !h.Ready || len(h.Down) > 0 {
				t.Errorf("after outage %d: %+v", n+1, h)
			}
		}
		stop()
		if n := log.count("database unreachable"); n > 5 {
			t.Errorf("%d lines report the begin of an outage", n)
		}
	})
}

// Promises: D
func TestALostAnswerOfASettleIsNoDuplicate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(nil)
		st := &shaky{Store: mem}
		b := membroker.New(nil)
		next := map[string]int64{}
		r := relay.New(st, b.Sink(), nil)
		stop := start(t, r)
		for range 10 {
			st.loseReply.Store(2)
			enqueue(t, mem, 500, 20, next)
			time.Sleep(3 * time.Second)
		}
		stop()
		if d := checkLog(t, b, "orders", next); d != 0 {
			t.Errorf("%d duplicates", d)
		}
		for _, book := range mem.Books() {
			if !book.Balanced() {
				t.Errorf("the book does not balance: %+v", book)
			}
		}
	})
}

func TestAnotherInstanceTakesOverWithinThreeSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(nil)
		dying := &shaky{Store: mem.Pipe(memstore.DefaultPipe)}
		b := membroker.New(nil)
		next := map[string]int64{}
		stopA := start(t, relay.New(dying, b.Sink(), nil))
		other := relay.New(mem.Pipe(memstore.DefaultPipe), b.Sink(), nil)
		stopB := start(t, other)
		time.Sleep(5 * time.Second)
		dying.down.Store(true) // as after SIGKILL: no goodbye
		enqueue(t, mem, 500, 40, next)
		time.Sleep(3 * time.Second)
		checkLog(t, b, "orders", next)
		if n := len(other.Stats().Lanes); n != 64 {
			t.Errorf("the survivor holds %d of 64 lanes", n)
		}
		stopB()
		stopA()
	})
}

// panicking is a sink with a bug. The five heads of keys count as unknown per panic.
type panicking struct {
	broker.Sink
	left atomic.Int64
}

func (p *panicking) Deliver(ctx context.Context, batch broker.Batch) []error {
	if p.left.Add(-1) >= 0 {
		panic("secret payload")
	}
	return p.Sink.Deliver(ctx, batch)
}

func TestAPanicOfTheSinkIsAnUnknownFate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(&memstore.Options{Lanes: 1})
		b := membroker.New(nil)
		next := map[string]int64{}
		enqueue(t, mem, 100, 5, next)
		sink := &panicking{Sink: b.Sink()}
		sink.left.Store(2)
		var log lines
		r := relay.New(mem, sink, &relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		stop := start(t, r)
		time.Sleep(10 * time.Second)
		stop()
		if d := checkLog(t, b, "orders", next); d != 0 {
			t.Errorf("%d duplicates", d)
		}
		if r.Stats().Errors["unknown"] != 10 || log.count(`msg="call panicked" call=deliver`) != 2 || log.count("secret") != 0 {
			t.Errorf("errors %v, log:\n%s", r.Stats().Errors, log.buf.String())
		}
	})
}

// Promises: D
func TestADrainWaitsForTheSinkAndSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(nil)
		b := membroker.New(nil)
		b.SetFault(func(ctx context.Context, _ postrider.Message) membroker.Outcome {
			time.Sleep(50 * time.Millisecond)
			return membroker.Outcome{}
		})
		next := map[string]int64{}
		enqueue(t, mem, 2000, 100, next)
		stop := start(t, relay.New(mem, b.Sink(), nil))
		time.Sleep(200 * time.Millisecond)
		stop()
		sent := b.Len("orders")
		status, err := mem.Office().Admin.Status(context.Background())
		if err != nil || status.Delivered != int64(sent) || sent == 0 {
			t.Errorf("%d at the broker, %d settled, %v", sent, status.Delivered, err)
		}
		b.SetFault(nil)
		stop = start(t, relay.New(mem, b.Sink(), nil))
		time.Sleep(2 * time.Second)
		stop()
		if d := checkLog(t, b, "orders", next); d != 0 {
			t.Errorf("%d duplicates after a clean stop", d)
		}
	})
}

func TestADestinationThatIsDownDoesNotStopTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(&memstore.Options{Lanes: 4})
		b := membroker.New(nil)
		var down atomic.Bool
		down.Store(true)
		b.SetFault(func(_ context.Context, m postrider.Message) membroker.Outcome {
			if m.Topic == "mail" && down.Load() {
				return membroker.Outcome{Err: broker.Outage(errDown, "refused", "mail")}
			}
			return membroker.Outcome{}
		})
		orders, mail := map[string]int64{}, map[string]int64{}
		for i := range 300 {
			tx := mem.Begin()
			for topic, next := range map[string]map[string]int64{"orders": orders, "mail": mail} {
				key := fmt.Sprint(topic, i%30)
				next[key]++
				if err := tx.Enqueue(postrider.Message{Topic: topic, Key: key, Version: next[key]}); err != nil {
					t.Fatal(err)
				}
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		r := relay.New(mem, b.Sink(), nil)
		stop := start(t, r)
		time.Sleep(time.Minute)
		checkLog(t, b, "orders", orders)
		if n := r.Stats().Parked["dead"]; n != 0 || b.Len("mail") != 0 {
			t.Errorf("%d dead in an outage, %d at mail", n, b.Len("mail"))
		}
		down.Store(false)
		time.Sleep(time.Minute)
		stop()
		checkLog(t, b, "orders", orders)
		if d := checkLog(t, b, "mail", mail); d != 0 {
			t.Errorf("%d duplicates at mail", d)
		}
	})
}

// TestADeadLetterIsSaid: a dead letter waits for a person, so it is logged, without its payload.
func TestADeadLetterIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(&memstore.Options{Lanes: 1})
		refuse := broker.Func("refuse", func(context.Context, postrider.Message) error { return broker.Rejected(errors.New("no"), "nope", "") })
		msg := postrider.Message{Topic: "orders", Key: "k", Payload: []byte("secret payload")}
		if err := mem.Enqueue(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
		var log lines
		stop := start(t, relay.New(mem, refuse, &relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		time.Sleep(5 * time.Second)
		stop()
		if log.count(`level=WARN msg="dead letter" seq=1`) != 1 || log.count("code=nope") != 1 || log.count("secret") != 0 {
			t.Errorf("log:\n%s", log.buf.String())
		}
	})
}

// TestTakeOverWithinThreeSeconds: another instance takes over within three seconds, at
// whatever moment between two heartbeats the owner died: no poll may add to the
// rest of the lease.
//
// Promises: S
func TestTakeOverWithinThreeSeconds(t *testing.T) {
	for died := 2000 * time.Millisecond; died < 2700*time.Millisecond; died += 50 * time.Millisecond {
		t.Run(died.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { takeOver(t, died) })
		})
	}
}

func takeOver(t *testing.T, died time.Duration) { //nolint:thelper // the body of its tests, whose lines should show
	mem := memstore.New(nil)
	b := membroker.New(nil)
	victim := &shaky{Store: mem}
	stop := start(t, relay.New(victim, b.Sink(), nil))
	defer stop()
	next := map[string]int64{}
	enqueue(t, mem, 500, 100, next)
	time.Sleep(died)
	victim.down.Store(true) // as after SIGKILL: no goodbye
	enqueue(t, mem, 500, 100, next)
	before := b.Len("orders")
	killed := time.Now()
	heir := start(t, relay.New(mem, b.Sink(), nil))
	defer heir()
	for b.Len("orders") < before+500 {
		time.Sleep(10 * time.Millisecond)
		if took := time.Since(killed); took > 3*time.Second {
			t.Fatalf("%v after the kill %d of 500 messages have arrived", took, b.Len("orders")-before)
		}
	}
	t.Logf("taken over after %v", time.Since(killed))
}
