// Package count finds out how many records an act will touch while no page is held.
package count

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/postrider/postrider/store/ops"
)

// How long a count continues that no page asks for, and how long it may take.
const (
	alone = 10 * time.Second
	most  = 10 * time.Minute
)

// Counts are those of one pipe that pages wait for, by what is counted. Each holds a connection of
// the database: of wide ones, which may read the whole outbox, there is one at a time. The zero
// value has none. It is safe for concurrent use.
type Counts struct {
	mu  sync.Mutex
	all map[string]*one
}

// Request is what a page wants to know.
type Request struct {
	What  string // is counted; pages that want the same share a count
	Wide  bool
	Wait  time.Duration // for a result
	Count func(context.Context) (ops.OrderPlan, error)
	// Begin runs work beside the page, with a context that ends with the console. False: it has ended.
	Begin func(work func(context.Context)) bool
}

// BusyError says that another wide count runs.
type BusyError struct{ Since time.Time }

func (e *BusyError) Error() string {
	return fmt.Sprintf("the messages of another replay of this pipe are being counted since %s: open the page again when that is done", e.Since.UTC().Format(time.TimeOnly))
}

// one is a count that runs, or whose result nobody has taken yet.
type one struct {
	began time.Time
	wide  bool
	idle  *time.Timer   // ends it
	done  chan struct{} // closed when the rest is set
	at    time.Time
	plan  ops.OrderPlan
	err   error
}

// Plan returns the result of a count, or since when it runs: the page then asks again.
func (c *Counts) Plan(ctx context.Context, r Request) (plan ops.OrderPlan, since time.Time, err error) {
	o, err := c.join(r)
	if err != nil {
		return plan, since, err
	}
	select {
	case <-o.done:
	case <-time.After(r.Wait):
		return plan, o.began, nil
	case <-ctx.Done():
		return plan, since, ctx.Err()
	}
	c.mu.Lock()
	if c.all[r.What] == o {
		delete(c.all, r.What) // the next page counts anew
	}
	c.mu.Unlock()
	return o.plan, since, o.err
}

// join returns the count that a request wants, and begins it where it does not run.
func (c *Counts) join(r Request) (*one, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, o := range c.all {
		if o.old() {
			delete(c.all, what)
		} else if r.Wide && o.wide && what != r.What && !o.ended() {
			return nil, &BusyError{o.began}
		}
	}
	if c.all == nil {
		c.all = map[string]*one{}
	}
	o := c.all[r.What]
	if o != nil && !o.idle.Stop() && (!o.ended() || o.err != nil) {
		o = nil // nobody asked for it any more, so it was cancelled: it has no result for this page
	}
	if o == nil {
		ready := make(chan context.CancelFunc, 1)
		o = &one{began: time.Now(), wide: r.Wide, done: make(chan struct{})}
		begun := r.Begin(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, most)
			defer cancel()
			ready <- cancel
			o.plan, o.err = r.Count(ctx)
			o.at = time.Now()
			close(o.done)
		})
		if !begun {
			return nil, context.Canceled
		}
		o.idle = time.AfterFunc(alone, <-ready)
		c.all[r.What] = o
	}
	o.idle.Reset(alone)
	return o, nil
}

func (o *one) ended() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// old reports whether a result is too old for a page that says "counted now".
func (o *one) old() bool { return o.ended() && time.Since(o.at) > alone }
