package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// How long a page waits for the count of an act's records, how long a count continues that no page
// asks for, and how long it may take.
const (
	countWait  = time.Second
	countAlone = 10 * time.Second
	countFor   = 10 * time.Minute
)

// counts are those of one pipe that pages wait for, by what is counted. Each holds a connection of
// the database: of replays, which may read the whole outbox, there is one at a time.
type counts struct {
	mu  sync.Mutex
	all map[string]*count
}

// count is how many records an act will touch, while that is found out.
type count struct {
	began time.Time
	done  chan struct{} // closed when the rest is set
	at    time.Time
	plan  ops.OrderPlan
	err   error
	idle  *time.Timer // ends it
	wide  bool        // reads the whole outbox
}

// counted returns the plan of an order, or since when it is being counted: by a statement that may
// read the whole outbox, and continues while a page asks for it.
func (q *request) counted(o ops.Order) (plan ops.OrderPlan, since time.Time, err error) {
	text, err := json.Marshal(struct {
		Kind  store.ActKind
		Match ops.Match
	}{o.Kind, o.Match})
	if err != nil {
		return plan, since, err
	}
	what, wide := string(text), o.Kind == store.ActReplay && len(o.Match.Seqs) == 0
	c := &q.place.counts
	c.mu.Lock()
	for other, one := range c.all {
		if one.old() {
			delete(c.all, other)
		} else if wide && one.wide && other != what && !one.ended() {
			c.mu.Unlock()
			return plan, since, &refusal{http.StatusServiceUnavailable, fmt.Sprintf("the messages of another replay of this pipe are being counted since %s: open the page again when that is done", one.began.UTC().Format(time.TimeOnly))}
		}
	}
	one := c.all[what]
	if one == nil {
		one = q.Console.count(q.place.office.Orders, o)
		one.wide = wide
		if c.all == nil {
			c.all = map[string]*count{}
		}
		c.all[what] = one
	}
	one.idle.Reset(countAlone)
	c.mu.Unlock()
	select {
	case <-one.done:
	case <-time.After(countWait):
		return plan, one.began, nil
	case <-q.ctx.Done():
		return plan, since, q.ctx.Err()
	}
	c.mu.Lock()
	if c.all[what] == one {
		delete(c.all, what) // the next page counts anew
	}
	c.mu.Unlock()
	return one.plan, since, one.err
}

func (c *count) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// old reports whether a result is too old for a page that says "counted now".
func (c *count) old() bool { return c.ended() && time.Since(c.at) > countAlone }

// count begins to count.
func (c *Console) count(orders ops.Orders, o ops.Order) *count {
	ctx, cancel := context.WithTimeout(c.ctx, countFor)
	one := &count{began: time.Now(), done: make(chan struct{}), idle: time.AfterFunc(countAlone, cancel)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		cancel()
		one.err = context.Canceled
		close(one.done)
		return one
	}
	c.work.Add(1)
	go func() {
		defer c.work.Done()
		defer cancel()
		one.plan, one.err = orders.PlanOrder(ctx, o)
		one.at = time.Now()
		close(one.done)
	}()
	return one
}
