package promises

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// tally is a number of bytes and its highest value.
type tally struct {
	mu          sync.Mutex
	bytes, most int
}

func (t *tally) add(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes += n
	t.most = max(t.most, t.bytes)
}

// live counts the bytes of the messages that a relay has read and not settled.
type live struct {
	store.Store
	one, all *tally // of this relay, of all relays

	mu    sync.Mutex
	lanes map[store.Lane][]int // sizes, oldest first
}

func (l *live) count(n int) { l.one.add(n); l.all.add(n) }

func (l *live) Read(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	batches, err := l.Store.Read(ctx, reads)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range batches {
		for i := range b.Messages {
			n := b.Messages[i].Size()
			l.lanes[b.Lane] = append(l.lanes[b.Lane], n)
			l.count(n)
		}
	}
	return batches, err
}

func (l *live) Settle(ctx context.Context, sts []store.Settlement) ([]store.Lane, error) {
	lost, err := l.Store.Settle(ctx, sts)
	if err != nil || len(lost) > 0 {
		return lost, errors.Join(err, errors.New("promises: a settlement failed; the count needs each"))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range sts {
		for _, n := range l.lanes[s.Lane][:s.Delivered] {
			l.count(-n)
		}
		l.lanes[s.Lane] = l.lanes[s.Lane][s.Delivered:]
	}
	return nil, nil
}

// inOrder is a sink that checks the order of each key and measures the heap.
type inOrder struct {
	mu    sync.Mutex
	next  map[string]int64
	wrong []string
	count int
	heap  uint64
	every int // the heap is measured at every so many calls
	calls int
}

func (s *inOrder) Info() broker.Info { return broker.Info{Name: "memory"} }

func (s *inOrder) Deliver(_ context.Context, b broker.Batch) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range b.Messages {
		m := &b.Messages[i]
		if s.next[m.Key]++; m.Version != s.next[m.Key] {
			s.wrong = append(s.wrong, fmt.Sprintf("%s: got %d, want %d", m.Key, m.Version, s.next[m.Key]))
		}
		s.count++
	}
	if s.calls++; s.calls%s.every == 0 {
		s.heap = max(s.heap, heap())
	}
	return nil
}

// load is a number of keys, the messages of each key, and their size.
type load struct{ keys, each, size int }

// TestBytesInHandStayWithinTheCap: for any sizes of rows and any number of lanes, a relay
// holds at most its cap plus one message, and a process the sum over its relays. The heap
// confirms it, and every message is delivered in the order of its key.
//
// Promises: G
func TestBytesInHandStayWithinTheCap(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		cap, relays int
		loads       []load
	}{
		"2 MiB in every lane":              {16 * mib, 1, []load{{150, 1, 2 * mib}}},
		"a large lane beside small ones":   {16 * mib, 1, []load{{1, 40, 2 * mib}, {300, 20, 300}}},
		"a fleet with 2 MiB each":          {2 * mib, 8, []load{{40, 1, mib / 2}, {20, 1, 2 * mib}, {100, 10, 300}}},
		"one message larger than the cap":  {2 * mib, 1, []load{{2, 2, 6 * mib}, {100, 10, 300}}},
		"of every size up to half the cap": {16 * mib, 1, []load{{50, 3, 10_000}, {30, 3, 100_000}, {30, 2, mib}, {6, 2, 8 * mib}}},
	} {
		t.Run(name, func(t *testing.T) {
			versions := testserver.PostgresVersions()
			pool := pgxPool(t, postgresDB(t, versions[len(versions)-1]))
			total, largest := 0, 0
			for i, l := range c.loads {
				fill(t, pool, fmt.Sprint("k", i, "-"), l)
				total, largest = total+l.keys*l.each, max(largest, l.size)
			}
			before := heap()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			sinks, stores, sum, done := make([]*inOrder, c.relays), make([]*live, c.relays), &tally{}, make(chan error, c.relays)
			for i := range c.relays {
				pipe := "main"
				if i > 0 {
					pipe = fmt.Sprint("copy", i)
				}
				sinks[i] = &inOrder{next: map[string]int64{}, every: max(total/30, 1)}
				stores[i] = &live{Store: pgstore.New(pool, &pgstore.Options{Pipe: pipe}), one: &tally{}, all: sum, lanes: map[store.Lane][]int{}}
				if i > 0 {
					if _, err := pgstore.New(pool, nil).Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Name: pipe, From: ops.FromBeginning, Actor: "test", Reason: "a relay of its own"}); err != nil {
						t.Fatal(err)
					}
				}
			}
			for i := range c.relays {
				go func() {
					done <- relay.New(stores[i], sinks[i], &relay.Options{MaxBytes: c.cap, LeaseTTL: 10 * time.Second}).Run(ctx)
				}()
			}
			until(t, 2*time.Minute, "every relay has sent every message", func() bool {
				for _, s := range sinks {
					s.mu.Lock()
					n := s.count
					s.mu.Unlock()
					if n < total {
						return false
					}
				}
				return true
			})
			cancel()
			for range c.relays {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			var highest uint64
			for i, s := range sinks {
				highest = max(highest, s.heap)
				if len(s.wrong) > 0 || s.count != total {
					t.Errorf("relay %d: %d messages of %d, out of order %q", i, s.count, total, s.wrong)
				}
				t.Logf("relay %d: at most %d KiB in flight, cap %d KiB", i, stores[i].one.most>>10, c.cap>>10)
				if most := stores[i].one.most; most > c.cap+largest+1000 {
					t.Errorf("relay %d held %d KiB, want at most the cap of %d KiB and one message of %d KiB", i, most>>10, c.cap>>10, largest>>10)
				}
			}
			t.Logf("all relays: at most %d KiB in flight, caps %d KiB", sum.most>>10, c.relays*c.cap>>10)
			// A connection reads a row into a buffer of the next power of two and keeps the
			// buffer until its next use. The pool of buffers keeps one more per processor.
			buffer := 1 << bits.Len(uint(largest))
			buffers := (int(pool.Config().MaxConns) + runtime.GOMAXPROCS(0)) * buffer
			grown, bound := int64(highest)-int64(before), int64(c.relays*(c.cap+largest)+buffers+8*mib)
			t.Logf("the heap grew by %d MiB of %d MiB", grown>>20, bound>>20)
			if grown > bound {
				t.Errorf("the heap grew by %d MiB, the bound is %d MiB", grown>>20, bound>>20)
			}
		})
	}
}

// fill writes a load, keys in turn.
func fill(t *testing.T, pool *pgxpool.Pool, prefix string, l load) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `INSERT INTO postrider.outbox (topic, key, type, version, payload)
		SELECT 'large', $1 || k, 'x', v, convert_to(repeat('x', $4), 'UTF8') FROM generate_series(1, $3::int) v, generate_series(1, $2::int) k ORDER BY v, k`,
		prefix, l.keys, l.each, l.size); err != nil {
		t.Fatal(err)
	}
}
