package httpbroker

import (
	"context"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/keychain"
)

// call is one Deliver. The messages of a key form a chain: the next message is sent
// when the one before was accepted, and after a failure the rest is not tried. A
// call that is over sends nothing more.
type call struct {
	s     *Sink
	ctx   context.Context
	table *table
	msgs  []postrider.Message
	next  keychain.Chain
	first []int // of each chain

	mu   sync.Mutex
	errs []error
	jobs []*job // the job that each chain waits for, at the index of its message
	open int    // chains that have not ended
	over bool
	done chan struct{}
}

func newCall(ctx context.Context, s *Sink, msgs []postrider.Message) *call {
	c := &call{
		s: s, ctx: ctx, table: s.table.Load(), msgs: msgs,
		jobs: make([]*job, len(msgs)), done: make(chan struct{}),
	}
	c.next, c.first = keychain.Of(msgs)
	c.open = len(c.first)
	return c
}

func (c *call) start() {
	if len(c.msgs) == 0 {
		close(c.done)
		return
	}
	for _, i := range c.first {
		c.mu.Lock()
		j := c.prepare(i)
		c.mu.Unlock()
		if j != nil {
			j.t.submit(j)
		}
	}
}

// prepare makes the job of message i, under the lock. It returns nil if there is
// nothing to submit: the message has failed, or an earlier request for it is in flight.
func (c *call) prepare(i int) *job {
	m := &c.msgs[i]
	if err := c.ctx.Err(); err != nil {
		c.fail(i, broker.NotTried(broker.Unknown(err, "", "")))
		return nil
	}
	f, err := c.s.frame(c.table, m)
	if err != nil {
		c.fail(i, err)
		return nil
	}
	t := f.t
	j := &job{
		t: t, c: c, i: i, id: lateID(m), name: m.ID, size: len(f.body),
		header: f.header, body: &body{data: f.body},
	}
	late, answered := t.resume(j)
	switch {
	case answered:
		return c.resolve(i, late.err)
	case late != nil:
		c.jobs[i] = late
		return nil
	}
	c.jobs[i] = j
	return j
}

// answer handles the outcome of a finished job.
func (c *call) answer(j *job, i int, err error) {
	c.mu.Lock()
	if c.over || c.jobs[i] != j {
		c.mu.Unlock()
		return
	}
	c.jobs[i] = nil
	next := c.resolve(i, err)
	c.mu.Unlock()
	if next != nil {
		next.t.submit(next)
	}
}

// resolve records the outcome of message i and returns the job of the next message of
// its key.
func (c *call) resolve(i int, err error) *job {
	if err != nil {
		c.fail(i, err)
		return nil
	}
	if n := c.next.Next(i); n > 0 {
		return c.prepare(n)
	}
	c.ended()
	return nil
}

// fail ends a chain at message i.
func (c *call) fail(i int, err error) {
	if c.errs == nil {
		c.errs = make([]error, len(c.msgs))
	}
	c.errs[i] = err
	c.next.Bar(i, c.errs, err)
	c.ended()
}

func (c *call) ended() {
	if c.open--; c.open == 0 {
		close(c.done)
	}
}

// hungPatience is the patience with endpoints that let an earlier call wait in vain.
const hungPatience = 100 * time.Millisecond

// wait returns when all chains have ended, or when the others take too long.
// With several endpoints it stops waiting early for those that are slow
// themselves; jobs that wait because the whole sink is busy get more time.
func (c *call) wait() {
	patience := c.s.patience(c.ctx)
	last := time.Now().Add(longPatience(c.ctx, patience))
	single := len(c.table.targets) == 1
	if single {
		patience = time.Until(last)
	}
	next := patience
	if !single {
		next = min(hungPatience, patience)
	}
	began, tick := time.Now(), patience/2
	if c.s.opts.Patience <= 0 {
		tick = min(tick, leastPatience-hungPatience)
	}
	timer := time.NewTimer(next)
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case <-c.done:
			return
		case <-c.ctx.Done():
			return
		case <-c.s.life.Done():
			return
		case now := <-timer.C:
			switch {
			case !now.Before(last):
				return
			case first:
				c.leaveIf(func(j *job) bool { return j.t.hangs() })
				timer.Reset(max(min(patience-hungPatience, tick, time.Until(last)), 0))
			default:
				c.leaveIf(func(j *job) bool { return j.t.slow(j, now, patience, now.Sub(began) >= patience) })
				c.leaveIf(func(j *job) bool { return j.t.hangs() }) // jobs queued behind those
				timer.Reset(max(min(tick, time.Until(last)), 0))
			}
		}
	}
}

// longPatience returns the longest time that a call may last.
func longPatience(ctx context.Context, patience time.Duration) time.Duration {
	d := max(patience, maxPatience)
	if end, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(end)*3/4)
	}
	return d
}

// leaveIf ends the chains whose job satisfies such.
func (c *call) leaveIf(such func(*job) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, j := range c.jobs {
		if j != nil && such(j) {
			c.leave(i, j)
		}
	}
}

// leave ends the wait for one job.
func (c *call) leave(i int, j *job) {
	c.jobs[i] = nil
	if err := j.t.leave(j, c.ctx.Err()); err != nil {
		c.fail(i, err)
		return
	}
	// The message was accepted at the last moment. The rest of its key was not tried.
	if n := c.next.Next(i); n > 0 {
		c.fail(n, notTried())
		return
	}
	c.ended()
}

// finish ends the call and stops waiting for its unfinished jobs.
func (c *call) finish() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for i, j := range c.jobs {
		if j != nil {
			c.leave(i, j)
		}
	}
	return c.errs
}

// notTried returns the error that keeps a message for the next call, without blame.
func notTried() error { return broker.Failed(broker.ErrNotTried, "", "") }
