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

// deadlyType is the type of a message that crashes the relay that sends it.
const deadlyType = "deadly"

// ward runs one relay after the other. Each ends like by SIGKILL: its later calls reach
// neither the database nor the broker.
type ward struct {
	t    testing.TB
	mem  *memstore.Store
	to   *membroker.Broker
	opts relay.Options
	mode atomic.Int32  // of the broker: works, refuses, silent or hangs
	took time.Duration // by a read or a settlement
	runs sync.WaitGroup
}

const (
	works int32 = iota
	refuses
	silent
	hangs // pings are answered, messages are not
)

// far is a store with slow reads and settlements.
type far struct {
	store.Store
	took time.Duration
}

func (f *far) Read(ctx context.Context, r []store.LaneRead) ([]store.Batch, error) {
	time.Sleep(f.took)
	return f.Store.Read(ctx, r)
}

func (f *far) Settle(ctx context.Context, s []store.Settlement) ([]store.Lane, error) {
	time.Sleep(f.took)
	return f.Store.Settle(ctx, s)
}

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
	m := &mortal{ward: w, store: &shaky{Store: &far{w.mem.Pipe(memstore.DefaultPipe), w.took}}, cancel: cancel, dead: make(chan struct{}), meets: meets}
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
	case mode == silent || mode == hangs:
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

// pending returns the number of messages that are neither delivered nor behind a dead letter.
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

// finish lets one more relay deliver all remaining messages.
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

// TestKillsInAnOutageMakeNoDeadLetter kills relays whose broker is unreachable, in their
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

// TestKillsAtASinkThatHangs kills relays soon after they start, while the broker answers
// pings and no message.
//
// Promises: S
func TestKillsAtASinkThatHangs(t *testing.T) {
	for _, c := range []struct {
		within          time.Duration
		attempts, kills int
	}{{2 * time.Second, 3, 150}, {5 * time.Second, 3, 150}, {20 * time.Second, 3, 100}, {5 * time.Second, 10, 400}} {
		t.Run(fmt.Sprint(c.within, " ", c.attempts), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(7, 7))
				w := newWard(t, relay.Options{Retry: relay.Retry{MaxAttempts: c.attempts}})
				next := map[string]int64{}
				enqueue(t, w.mem, 1000, 40, next)
				w.mode.Store(hangs)
				for range c.kills {
					m := w.start(nil)
					time.Sleep(time.Duration(rng.Int64N(int64(c.within))))
					m.kill()
				}
				w.mode.Store(works)
				w.finish()
				w.noDeadLetter()
				checkLog(t, w.to, "orders", next)
			})
		})
	}
}

// TestABacklogIsSentQuicklyAfterKills compares how long the backlog of an outage takes
// without kills, and with some relays killed meanwhile.
//
// Promises: S
func TestABacklogIsSentQuicklyAfterKills(t *testing.T) {
	took := map[int]time.Duration{}
	for _, kills := range []int{0, 3, 4, 6} {
		synctest.Test(t, func(t *testing.T) {
			w := newWard(t, relay.Options{})
			w.took = 5 * time.Millisecond
			next := map[string]int64{}
			enqueue(t, w.mem, 60_000, 2000, next)
			w.mode.Store(refuses)
			for range kills {
				m := w.start(nil)
				time.Sleep(20 * time.Second)
				m.kill()
			}
			w.runs.Wait()
			time.Sleep(time.Minute) // the last lease runs out
			if recs := len(w.parked()); recs > 0 {
				t.Errorf("%d kills: %d messages are set aside although the broker is away", kills, recs)
			}
			w.mode.Store(works)
			began := time.Now()
			m := w.start(nil)
			for w.pending() > 0 && time.Since(began) < 10*time.Minute {
				time.Sleep(50 * time.Millisecond)
			}
			took[kills] = time.Since(began)
			t.Logf("%d kills: %v, %d calls", kills, took[kills], m.calls.Load())
			m.cancel()
			w.runs.Wait()
			w.noDeadLetter()
			checkLog(t, w.to, "orders", next)
		})
	}
	for kills, d := range took {
		if d > took[0]+2*time.Second {
			t.Errorf("the backlog took %v after %d kills and %v after none", d, kills, took[0])
		}
	}
}
