package admin_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// points is a history whose clock is an hour behind.
type points struct {
	mu   sync.Mutex
	all  []ops.Point
	back time.Duration // by which the clock was set back
}

func (p *points) now() time.Time { return time.Now().Add(-time.Hour - p.back) }

func (p *points) Keep(_ context.Context, one ops.Point) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.At = p.now()
	p.all = slices.DeleteFunc(p.all, func(o ops.Point) bool { return o.At.After(one.At) })
	if n := len(p.all); n > 0 && one.At.Sub(p.all[n-1].At) < ops.PointSlot {
		return false, nil
	}
	p.all = append(p.all, one)
	return true, nil
}

func (p *points) Points(_ context.Context, since time.Time, _ time.Duration) (found []ops.Point, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.all {
		if !one.At.Before(since) && !one.At.After(p.now()) {
			found = append(found, one)
		}
	}
	return found, nil
}

func (p *points) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}

// Three relays keep one history, and a console adds to it only when they have ended.
func TestHistoryTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := &points{}
		office := *memstore.New(nil).Office()
		office.History = kept
		log := slog.New(slog.DiscardHandler)
		relays, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 3 {
			time.Sleep(time.Duration(i) * 700 * time.Millisecond)
			all.Go(func() {
				if err := admin.KeepHistory(relays, &office, log); err != nil {
					t.Error(err)
				}
			})
		}
		h, err := admin.NewHistory(&office, 25*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		byConsole := 0
		watch := func(d time.Duration) {
			for range d / time.Second {
				time.Sleep(time.Second)
				if did, err := h.Look(t.Context(), office.Admin.Status); err != nil {
					t.Fatal(err)
				} else if did {
					byConsole++
				}
			}
		}
		watch(10 * time.Minute)
		if n := kept.count(); n < 50 || n > 61 || byConsole != 0 {
			t.Errorf("10 minutes have %d points, %d of them by the console, want about 60 and none", n, byConsole)
		}
		end()
		all.Wait()
		before := kept.count()
		watch(10 * time.Minute)
		if n := kept.count() - before; n < 50 || n > 68 || n != byConsole {
			t.Errorf("10 minutes without relays have %d points, %d of them by the console, want about 60", n, byConsole)
		}
	})
}

// Relays take turns as before when the store's clock has been set back.
func TestHistoryAfterTheClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := &points{}
		office := *memstore.New(nil).Office()
		office.History = kept
		relays, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 3 {
			time.Sleep(time.Duration(i) * 1700 * time.Millisecond)
			all.Go(func() {
				if err := admin.KeepHistory(relays, &office, slog.New(slog.DiscardHandler)); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(30 * time.Minute)
		kept.mu.Lock()
		kept.back = 20 * time.Minute
		kept.mu.Unlock()
		time.Sleep(10 * time.Minute)
		since := kept.now().Add(-10 * time.Minute)
		found, err := kept.Points(t.Context(), since, 0)
		if n := len(found); err != nil || n < 50 || n > 61 {
			t.Errorf("10 minutes after the clock was set back have %d points, error %v, want about 60", n, err)
		}
		end()
		all.Wait()
	})
}

func TestHistoryNeedsOne(t *testing.T) {
	if err := admin.KeepHistory(t.Context(), memstore.New(nil).Office(), slog.Default()); !errors.Is(err, ops.ErrUnsupported) {
		t.Errorf("error %v, want one that matches ErrUnsupported", err)
	}
}
