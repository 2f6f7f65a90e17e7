package mysqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/internal/testserver/mysqlha"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/ops"
)

// A replica is promoted again and again while hostile writers work and a relay carries: no committed
// message is lost, none is invented, and each key arrives in its order. The relay continues by itself
// and logs each change once.
//
// Promises: L, P, O
func TestReplicasArePromotedUnderWriters(t *testing.T) {
	times := 1
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		times = 20
	}
	onPairs(t, func(t *testing.T, p *mysqlha.Pair, s *Store) {
		lines := disturb(t, s, p.URL, times, func() error {
			return errors.Join(p.Primary.Kill(), p.Promote(t.Context()))
		}, func() error { return p.Rebuild(t.Context()) })
		// An outage and its end, for the promotion and for the copy that rebuilds the replica.
		if lines > 4*times+4 {
			t.Errorf("%d lines in the log", lines)
		}
	})
}

// The primary of a replication group is killed again and again, and joins it again.
//
// Promises: L, P, O
func TestGroupPrimariesAreKilledUnderWriters(t *testing.T) {
	if !slices.Contains(versions(), testserver.MySQL9) {
		t.Log("long form only: POSTRIDER_MATRIX=1")
		return
	}
	ctx := t.Context()
	g := mysqlha.StartGroup(t)
	s := New(pool(t, g.URL), nil)
	if _, err := s.Office().Migrator.Migrate(ctx, ops.MigrateRequest{Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	var dead *testserver.MySQL
	disturb(t, s, g.URL, 3, func() (err error) {
		if dead, err = g.Primary(ctx); err == nil {
			err = dead.Kill()
		}
		return err
	}, func() error {
		return errors.Join(dead.Restart(), g.Join(ctx, dead))
	})
}

// disturb carries what hostile writers write while primaries fail and come back. It returns how many
// lines the relay logged.
func disturb(t *testing.T, s *Store, url string, times int, fail, repair func() error) (logged int) {
	t.Helper()
	ctx := t.Context()
	bus, log := membroker.New(nil), new(lines)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- relay.New(s, bus.Sink(), &relay.Options{Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo}))}).Run(running)
	}()
	var done atomic.Bool
	var writing sync.WaitGroup
	all := make([]*hostile, 6)
	for i := range all {
		h := &hostile{db: pool(t, url), key: fmt.Sprintf("key%d", i), rng: rand.New(rand.NewPCG(uint64(i), 5)), noXA: true}
		all[i] = h
		writing.Go(func() {
			for !done.Load() {
				if h.write(ctx) != nil {
					h.resync(ctx)
				}
			}
		})
	}
	sent := func() int { return bus.Len("t") }
	more := func(n int) {
		t.Helper()
		want := sent() + n
		waitFor(t, fmt.Sprintf("%d more messages", n), func() bool { return sent() >= want })
	}
	for range times {
		more(100)
		if err := fail(); err != nil {
			t.Fatal(err)
		}
		more(100)
		if err := repair(); err != nil {
			t.Fatal(err)
		}
	}
	more(100)
	done.Store(true)
	writing.Wait()
	var total int64
	for _, h := range all {
		h.resync(ctx)
		total += h.n
	}
	waitFor(t, "everything is settled", func() bool {
		st, err := s.Office().Admin.Status(ctx)
		return err == nil && st.Pending == 0
	})
	stop()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	next, again := map[string]int64{}, 0
	for _, e := range bus.Log("t") {
		switch m := e.Message; {
		case m.Version <= next[m.Key]:
			again++
		case m.Version == next[m.Key]+1:
			next[m.Key]++
		default:
			t.Errorf("%s: version %d came where %d was due", m.Key, m.Version, next[m.Key]+1)
		}
	}
	for _, h := range all {
		if next[h.key] != h.n {
			t.Errorf("%s: %d versions came, %d are committed", h.key, next[h.key], h.n)
		}
	}
	t.Logf("%d failovers, %d messages, %d of them again; the relay's log:\n%s", times, total, again, log)
	return log.count()
}

// resync learns from the outbox what is committed: of a commit whose answer is missing nobody else knows.
func (h *hostile) resync(ctx context.Context) {
	for {
		err := h.db.QueryRowContext(ctx, "SELECT COALESCE(MAX(version), 0) FROM postrider_outbox WHERE `key` = ?", h.key).Scan(&h.n)
		if err == nil || ctx.Err() != nil {
			return
		}
	}
}

// waitFor waits for a condition.
func waitFor(t *testing.T, what string, met func() bool) {
	t.Helper()
	bound, poll := time.After(3*time.Minute), time.NewTicker(10*time.Millisecond)
	defer poll.Stop()
	for !met() {
		select {
		case <-bound:
			t.Fatal("waited in vain until: " + what)
		case <-poll.C:
		}
	}
}

// lines is a log in memory.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

func (l *lines) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.all.Bytes(), []byte("\n"))
}
