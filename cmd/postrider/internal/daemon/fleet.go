package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/store"
)

// watchSinks follows what sinks were opened with, and returns what ends that.
func watchSinks(ctx context.Context, units []*unit) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, u := range units {
		if u.watch != nil {
			all.Go(func() { u.watch(ctx, u.log) })
		}
	}
	return func() { cancel(); all.Wait() }
}

// How long a relay that cannot work as things are waits before it tries again,
// while others of the process work.
const (
	firstRetry = 2 * time.Second
	lastRetry  = 10 * time.Second
)

// fleet runs the relays of a process. One that cannot work (no schema there, a
// privilege missing, its pipe removed) waits and tries again, and the others do
// not notice; when none can, the process ends with their errors.
type fleet struct {
	units []*unit
	end   context.CancelFunc

	mu     sync.Mutex
	failed map[*unit]error // that wait before they try again
	over   bool            // all of them did
}

func runUnits(ctx context.Context, units []*unit) error {
	if len(units) == 1 && units[0].name == "" {
		return units[0].run(ctx)
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	f := &fleet{units: units, end: end, failed: map[*unit]error{}}
	var all sync.WaitGroup
	for _, u := range units {
		all.Go(func() { f.run(ctx, u) })
	}
	all.Wait()
	return f.verdict()
}

func (f *fleet) run(ctx context.Context, u *unit) {
	said := ""
	var last error
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		f.tries(u)
		began := time.Now()
		err := u.again(ctx, last)
		if last = err; err == nil {
			return
		}
		if u.relay.Stats().LastLease.After(began) { // it worked meanwhile
			wait, said = firstRetry, ""
		}
		if text := err.Error(); text != said {
			said = text
			u.log.ErrorContext(ctx, "relay not started", "error", err)
		}
		if f.fails(u, err) {
			f.end()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// again runs the relay, but for an outbox that was not there the last time and is not there
// yet: a relay that starts only to end would be logged as started each time.
func (u *unit) again(ctx context.Context, last error) error {
	if errors.Is(last, store.ErrSchema) {
		have, want, err := open.Reach(ctx, u.store)
		switch {
		case errors.Is(err, store.ErrSchema):
			return err
		case err == nil && have != want:
			return last
		}
	}
	return u.run(ctx)
}

// tries notes that a relay runs: whatever it waits for, a database or a broker
// that is down, is no reason to end.
func (f *fleet) tries(u *unit) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		delete(f.failed, u)
	}
}

// fails notes how a relay ended, and reports whether none is left that works.
func (f *fleet) fails(u *unit, err error) (all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed[u] = err
	f.over = f.over || len(f.failed) == len(f.units)
	return f.over
}

// verdict is nil unless no relay was left that works.
func (f *fleet) verdict() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		return nil
	}
	var errs []error
	for _, u := range f.units {
		errs = append(errs, fmt.Errorf("relay %s: %w", u.name, f.failed[u]))
	}
	return errors.Join(errs...)
}
