package relay_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/postrider/postrider/store/ops"
)

// enqueue commits n messages over the keys, each key numbered by Version.
func enqueue(tb testing.TB, st *memstore.Store, n, keys int, next map[string]int64) {
	tb.Helper()
	for i := 0; i < n; {
		tx := st.Begin()
		for range min(50, n-i) {
			key := fmt.Sprintf("k%d", i%keys)
			next[key]++
			if err := tx.Enqueue(postrider.Message{Topic: "orders", Key: key, Version: next[key], Payload: []byte("{}")}); err != nil {
				tb.Fatal(err)
			}
			i++
		}
		if err := tx.Commit(); err != nil {
			tb.Fatal(err)
		}
	}
}

// checkLog fails unless every message up to next is there, in order per key.
// It returns the number of copies beyond the first.
func checkLog(tb testing.TB, b *membroker.Broker, topic string, next map[string]int64) (duplicates int) {
	tb.Helper()
	high := map[string]int64{}
	for _, en := range b.Log(topic) {
		m := en.Message
		switch {
		case m.Version == high[m.Key]+1:
			high[m.Key]++
		case m.Version <= high[m.Key]:
			duplicates++
		default:
			tb.Fatalf("key %s: version %d came after %d", m.Key, m.Version, high[m.Key])
		}
	}
	for key, want := range next {
		if high[key] != want {
			tb.Errorf("key %s: %d of %d versions arrived", key, high[key], want)
		}
	}
	return duplicates
}

// start runs a relay until the returned stop, which reports what Run returned.
func start(tb testing.TB, r *relay.Relay) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("Run returned %v", err)
		}
	}
}

// Promises: D
func TestDrainsABacklogOnceAndInOrder(t *testing.T) {
	for _, family := range []memstore.Family{memstore.Cursor, memstore.Rows} {
		t.Run(fmt.Sprint(family), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New(&memstore.Options{Family: family})
				b := membroker.New(nil)
				next := map[string]int64{}
				enqueue(t, st, 20000, 77, next)
				r := relay.New(st, b.Sink(), nil)
				stop := start(t, r)
				time.Sleep(2 * time.Second)
				enqueue(t, st, 500, 77, next)
				time.Sleep(time.Second)
				if s := r.Stats(); s.Delivered != 20500 || len(s.Lanes) != 64 {
					t.Errorf("delivered %d on %d lanes, want 20500 on 64", s.Delivered, len(s.Lanes))
				}
				if h := r.Health(); !h.Ready || !h.Alive {
					t.Errorf("health is %+v, want ready and alive", h)
				}
				stop()
				if d := checkLog(t, b, "orders", next); d != 0 {
					t.Errorf("%d duplicates without a fault", d)
				}
				status, err := st.Office().Admin.Status(context.Background())
				if err != nil || status.Pending != 0 || status.Delivered != 20500 {
					t.Errorf("pending %d, delivered %d, %v: want 0 and 20500", status.Pending, status.Delivered, err)
				}
			})
		})
	}
}

func TestReplicasShareAndHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		b := membroker.New(nil)
		next := map[string]int64{}
		var rs [3]*relay.Relay
		var stops [3]func()
		for i := range rs {
			rs[i] = relay.New(st.Pipe(memstore.DefaultPipe), b.Sink(), &relay.Options{Instance: fmt.Sprint("r", i)})
			stops[i] = start(t, rs[i])
			for range 20 {
				enqueue(t, st, 300, 40, next)
				time.Sleep(50 * time.Millisecond)
			}
		}
		time.Sleep(2 * time.Second)
		for i, r := range rs {
			if n := len(r.Stats().Lanes); n < 20 || n > 22 {
				t.Errorf("replica %d holds %d of 64 lanes", i, n)
			}
		}
		stops[0]()
		enqueue(t, st, 300, 40, next)
		time.Sleep(time.Second)
		if n := len(rs[1].Stats().Lanes) + len(rs[2].Stats().Lanes); n != 64 {
			t.Errorf("%d of 64 lanes are held a second after a replica left", n)
		}
		stops[1]()
		stops[2]()
		if d := checkLog(t, b, "orders", next); d != 0 {
			t.Errorf("%d duplicates from handing over", d)
		}
	})
}

// asked notes how many records its relay asks for at most.
type asked struct {
	store.Store
	most atomic.Int64
}

func (a *asked) Read(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	var n int64
	for i := range reads {
		n += int64(reads[i].MaxRecords)
	}
	a.most.Store(max(a.most.Load(), n))
	return a.Store.Read(ctx, reads)
}

// sized is a sink that fewer messages keep busy.
type sized struct {
	broker.Sink
	held int
}

func (s sized) Info() broker.Info {
	info := s.Sink.Info()
	info.Held = s.held
	return info
}

// A relay holds as many messages as its sink needs, unless the options name a number.
//
// Promises: G
func TestHoldsWhatTheSinkNeeds(t *testing.T) {
	for _, test := range []struct {
		held, option int
		most         int64
	}{{2048, 0, 2048}, {2048, 8192, 8192}, {0, 0, 24576}} {
		synctest.Test(t, func(t *testing.T) {
			st := &asked{Store: memstore.New(nil)}
			stop := start(t, relay.New(st, sized{membroker.New(nil).Sink(), test.held}, &relay.Options{MaxMessages: test.option}))
			time.Sleep(time.Second)
			stop()
			if got := st.most.Load(); got > test.most || got < test.most/8 {
				t.Errorf("a sink that %d messages keep busy, and the option %d: %d records asked for, want %d at most", test.held, test.option, got, test.most)
			}
		})
	}
}

// The rate is the pipe's: three relays send together what one would, also after one has left.
//
// Promises: S
func TestReplicasShareTheRate(t *testing.T) {
	const rate, page = 600, 60
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		b := membroker.New(nil)
		next := map[string]int64{}
		enqueue(t, st, 40_000, 2_000, next)
		var stops [3]func()
		for i := range stops {
			r := relay.New(st.Pipe(memstore.DefaultPipe), b.Sink(), &relay.Options{Instance: fmt.Sprint("r", i), Rate: rate})
			stops[i] = start(t, r)
		}
		time.Sleep(5 * time.Second)
		for n := 3; n > 0; n-- {
			before := len(b.Log("orders"))
			time.Sleep(10 * time.Second)
			if sent := len(b.Log("orders")) - before; sent < 9*rate || sent > 10*rate+n*page {
				t.Errorf("%d relays sent %d messages in 10 s at %d a second", n, sent, rate)
			}
			stops[n-1]()
			time.Sleep(5 * time.Second) // the others take its lanes
		}
	})
}

// Promises: O
func TestFailedMessagesAreRetriedAndKeepTheirKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		b := membroker.New(nil)
		var failures atomic.Int64
		b.SetFault(func(_ context.Context, m postrider.Message) membroker.Outcome {
			if m.Key == "k3" && m.Version == 5 && failures.Add(1) <= 3 {
				return membroker.Outcome{Err: broker.Failed(errors.New("try later"), "later", "orders")}
			}
			if m.Key == "k4" && m.Version == 2 {
				return membroker.Outcome{Err: broker.Rejected(errors.New("no"), "bad", "")}
			}
			return membroker.Outcome{}
		})
		next := map[string]int64{}
		enqueue(t, st, 200, 10, next)
		r := relay.New(st, b.Sink(), &relay.Options{Retry: relay.Retry{Delays: []time.Duration{time.Second, 2 * time.Second}, Jitter: -1}})
		stop := start(t, r)
		time.Sleep(20 * time.Second)
		next["k4"] = 1 // the rest waits behind its dead head
		if d := checkLog(t, b, "orders", next); d != 0 {
			t.Errorf("%d duplicates", d)
		}
		status, err := st.Office().Admin.Status(context.Background())
		if err != nil || status.Parked["dead"] != 1 || status.Parked["waiting"] != 18 || status.Parked["retry"] != 0 {
			t.Errorf("parked %v, %v: want 1 dead and 18 waiting", status.Parked, err)
		}
		b.SetFault(nil)
		dead, err := st.Office().Admin.Parked(context.Background(), ops.ParkedQuery{State: store.Dead})
		if err != nil || len(dead) != 1 || dead[0].Code != "bad" {
			t.Fatalf("dead letters %v, %v", dead, err)
		}
		if _, err := st.Office().Admin.Request(context.Background(), store.Act{Kind: store.ActRetry, Seq: dead[0].Seq, Actor: "ann"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		next["k4"] = 20
		checkLog(t, b, "orders", next)
		stop()
	})
}

// Promises: S
func TestOutageBurnsNoAttemptAndHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		b := membroker.New(nil)
		b.SetFault(func(context.Context, postrider.Message) membroker.Outcome {
			return membroker.Outcome{Err: broker.Outage(errors.New("connection refused"), "refused", "")}
		})
		next := map[string]int64{}
		enqueue(t, st, 2000, 50, next)
		var changes []string
		r := relay.New(st, b.Sink(), &relay.Options{Observer: &relay.Observer{
			Health: func(h relay.HealthInfo) { changes = append(changes, fmt.Sprint(h.Part, h.Down)) },
		}})
		stop := start(t, r)
		time.Sleep(10 * time.Minute)
		if s := r.Stats(); s.Delivered != 0 || s.Parked["retry"]+s.Parked["dead"] != 0 || s.Down["sink"] == "" {
			t.Errorf("in the outage: %+v", s)
		}
		b.SetFault(nil)
		time.Sleep(17 * time.Second)
		if d := checkLog(t, b, "orders", next); d != 0 {
			t.Errorf("%d duplicates", d)
		}
		stop()
		if fmt.Sprint(changes) != "[sinktrue sinkfalse]" {
			t.Errorf("health changes %v, want one down and one up", changes)
		}
	})
}

func TestRunSaysWhyItCannotWork(t *testing.T) {
	st := memstore.New(&memstore.Options{Empty: true})
	err := relay.New(st, membroker.New(nil).Sink(), nil).Run(context.Background())
	if !errors.Is(err, store.ErrSchema) {
		t.Errorf("without a schema Run returned %v", err)
	}
	err = relay.New(st, membroker.New(nil).Sink(), &relay.Options{Window: -1, PollMax: -1}).Run(context.Background())
	if !errors.Is(err, relay.ErrOptions) {
		t.Errorf("with bad options Run returned %v", err)
	}
	t.Log(err)
}
