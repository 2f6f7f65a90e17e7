package relay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	"github.com/postrider/postrider/store/ops"
)

// deadlyType is the type of a message that ends the relay that sends it.
const deadlyType = "deadly"

// ward runs one relay after the other. Each ends as by SIGKILL: nothing that it does
// afterwards reaches the database or the broker.
type ward struct {
	t    testing.TB
	mem  *memstore.Store
	to   *membroker.Broker
	opts relay.Options
	mode atomic.Int32 // of the broker: works, refuses or silent
	runs sync.WaitGroup
}

const (
	works int32 = iota
	refuses
	silent
)

// mortal is one relay of a ward, and its sink.
type mortal struct {
	*ward
	store  *shaky
	cancel context.CancelFunc
	dead   chan struct{}
	once   sync.Once
	calls  atomic.Int64
	meets  func(m *mortal, call int64) // before each call
}

var errRefused = errors.New("connection refused")

func newWard(tb testing.TB, opts relay.Options) *ward {
	tb.Helper()
	return &ward{t: tb, mem: memstore.New(nil), to: membroker.New(nil), opts: opts}
}

// start starts a relay. meets may kill it before any of its calls.
func (w *ward) start(meets func(m *mortal, call int64)) *mortal {
	ctx, cancel := context.WithCancel(context.Background())
	m := &mortal{ward: w, store: &shaky{Store: w.mem.Pipe(memstore.DefaultPipe)}, cancel: cancel, dead: make(chan struct{}), meets: meets}
	w.runs.Go(func() {
		opts := w.opts
		if err := relay.New(m.store, m, &opts).Run(ctx); err != nil {
			w.t.Errorf("Run returned %v", err)
		}
	})
	return m
}

func (m *mortal) kill() {
	m.once.Do(func() {
		m.store.down.Store(true)
		close(m.dead)
		m.cancel()
	})
}

func (m *mortal) isDead() bool {
	select {
	case <-m.dead:
		return true
	default:
		return false
	}
}

func (m *mortal) Info() broker.Info {
	info := m.to.Sink().Info()
	info.Ping = m.ping
	return info
}

func (m *mortal) ping(ctx context.Context) error {
	switch m.mode.Load() {
	case refuses:
		return broker.Outage(errRefused, "", "")
	case silent:
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (m *mortal) Deliver(ctx context.Context, b broker.Batch) []error {
	msgs := b.Messages
	call := m.calls.Add(1)
	select {
	case <-m.dead:
	case <-time.After(time.Millisecond):
	}
	if m.meets != nil {
		m.meets(m, call)
	}
	all := func(err error) []error { return slices.Repeat([]error{err}, len(msgs)) }
	switch mode := m.mode.Load(); {
	case m.isDead():
		return all(broker.ErrNotTried)
	case mode == refuses:
		return all(broker.Outage(errRefused, "", ""))
	case mode == silent:
		select {
		case <-ctx.Done():
		case <-m.dead:
		}
		return all(broker.Unknown(context.DeadlineExceeded, "timeout", ""))
	}
	if i := slices.IndexFunc(msgs, func(m postrider.Message) bool { return m.Type == deadlyType }); i >= 0 {
		m.to.Sink().Deliver(ctx, broker.Batch{Pipe: b.Pipe, Messages: msgs[:i]})
		m.kill()
		return all(broker.ErrNotTried)
	}
	return m.to.Sink().Deliver(ctx, b)
}

// pending is how many messages are neither delivered nor held by a dead letter.
func (w *ward) pending() int {
	s, err := w.mem.Office().Admin.Status(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	held, recs := map[string]int{}, w.parked()
	for _, r := range recs {
		if r.State == store.Dead && r.Captures {
			held[r.Message.Key] = 1
		}
	}
	n := int(s.Pending)
	for _, r := range recs {
		if r.State == store.Waiting {
			n -= held[r.Message.Key]
		}
	}
	return n
}

func (w *ward) parked() []ops.ParkedRecord {
	recs, err := w.mem.Office().Admin.Parked(context.Background(), ops.ParkedQuery{Limit: 1 << 20})
	if err != nil {
		w.t.Fatal(err)
	}
	return recs
}

// finish lets one more relay deliver all that is left.
func (w *ward) finish() {
	w.t.Helper()
	m := w.start(nil)
	for range 600 {
		if w.pending() == 0 {
			break
		}
		time.Sleep(time.Second)
	}
	m.cancel()
	w.runs.Wait()
}

func (w *ward) noDeadLetter() {
	w.t.Helper()
	for _, r := range w.parked() {
		w.t.Errorf("message %d of key %s is %v after %d attempts: %s %s", r.Seq, r.Message.Key, r.State, r.Attempts, r.Code, r.Error)
	}
}

// Promises: S
func TestAMessageThatEndsItsRelaysIsDeadAlone(t *testing.T) {
	for name, policy := range map[string]relay.KeyPolicy{"block": relay.Block, "skip": relay.Skip} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWard(t, relay.Options{Policy: func(string) relay.KeyPolicy { return policy }, Retry: relay.Retry{MaxAttempts: 4}})
				next := map[string]int64{}
				enqueue(t, w.mem, 400, 20, next)
				first := next["k3"]
				tx := w.mem.Begin()
				if err := tx.Enqueue(postrider.Message{Topic: "orders", Key: "k3", Type: deadlyType, Payload: []byte("{}")}); err != nil {
					t.Fatal(err)
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				enqueue(t, w.mem, 400, 20, next)
				killed := 0
				for ; w.pending() > 0 && killed < 40; killed++ {
					m := w.start(nil)
					for !m.isDead() && w.pending() > 0 {
						time.Sleep(time.Second)
					}
					m.kill()
				}
				t.Logf("%d relays ended", killed)
				w.finish()
				var dead []ops.ParkedRecord
				for _, r := range w.parked() {
					if r.State == store.Dead {
						dead = append(dead, r)
					}
				}
				if len(dead) != 1 || dead[0].Message.Type != deadlyType {
					t.Fatalf("dead are %+v, want the one message that ends its relays", dead)
				}
				d := dead[0]
				if d.Attempts != 4 || d.Code != store.CodeCrashed || d.Class != "unknown" || !strings.Contains(d.Error, "relay process ended") {
					t.Errorf("the dead letter has %d attempts, class %q, code %q and error %q", d.Attempts, d.Class, d.Code, d.Error)
				}
				if policy == relay.Block { // what stands behind it waits, and nothing else does
					next["k3"] = first
				}
				checkLog(t, w.to, "orders", next)
			})
		})
	}
}

// TestKillsAtOtherMessagesMakeNoDeadLetter kills 20 relays, each in one of its first 40
// calls, which is the worst that kills from outside can do: nearly all of these calls
// carry one suspect. The attempts are the default; three would be used up by chance in
// one run of a hundred.
//
// Promises: S
func TestKillsAtOtherMessagesMakeNoDeadLetter(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 1))
				w := newWard(t, relay.Options{})
				next := map[string]int64{}
				for range 20 {
					enqueue(t, w.mem, 300, 40, next)
					at := 1 + rng.Int64N(40)
					m := w.start(func(m *mortal, call int64) {
						if call == at {
							m.kill()
						}
					})
					select {
					case <-m.dead:
					case <-time.After(time.Minute):
						m.kill()
					}
					time.Sleep(time.Duration(rng.Int64N(int64(5 * time.Second))))
				}
				w.finish()
				w.noDeadLetter()
				checkLog(t, w.to, "orders", next)
			})
		})
	}
}

// TestKillsInAnOutageMakeNoDeadLetter kills relays whose broker is away, in their
// first calls and at any time, far more often than a message has attempts.
//
// Promises: S
func TestKillsInAnOutageMakeNoDeadLetter(t *testing.T) {
	for name, mode := range map[string]int32{"refused": refuses, "silent": silent} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(7, 7))
				w := newWard(t, relay.Options{Retry: relay.Retry{MaxAttempts: 1}})
				next := map[string]int64{}
				enqueue(t, w.mem, 1000, 40, next)
				w.mode.Store(mode)
				end := time.Now().Add(time.Hour)
				for i := 0; time.Now().Before(end); i++ {
					at := 1 + rng.Int64N(3)
					m := w.start(func(m *mortal, call int64) {
						if i%2 == 0 && call == at {
							m.kill()
						}
					})
					select {
					case <-m.dead:
					case <-time.After(time.Duration(rng.Int64N(int64(6 * time.Minute)))):
						m.kill()
					}
					enqueue(t, w.mem, 10, 40, next)
				}
				w.mode.Store(works)
				w.finish()
				w.noDeadLetter()
				checkLog(t, w.to, "orders", next)
			})
		})
	}
}
