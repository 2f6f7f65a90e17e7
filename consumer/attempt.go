package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// step is the next step after begin.
type step uint8

const (
	proceed   step = iota // run the handler
	finished              // the verdict is final
	aloneOnly             // process again when no other handler runs
)

// begin counts the attempt in a transaction of its own. It skips the
// first delivery, which spares the usual case a commit. With a source that does not
// know the number of a delivery, every message costs the commit.
//
// An attempt that another process began and never ended may have crashed that
// process; so may any attempt that ran beside it. The message is therefore set
// aside until it can run alone. If the process crashes again then, this message
// is the proven cause.
func (c *Consumer[Tx]) begin(ctx context.Context, t *task, at turn) (v broker.Verdict, next step) {
	try := inboxwork.Try{Origin: t.d.Origin, Owner: c.owner, Alone: at.alone}
	a, err := c.count(ctx, t, try)
	if err == nil && a.Orphan {
		if used, guilty := c.guilty(t, a); guilty {
			t.count = used
			v, _ = c.bury(ctx, t, unfinished(used, a)) // proven, whatever the other messages do
			return v, finished
		}
		if !at.last {
			return v, aloneOnly
		}
		try.TakeOver = true
		a, err = c.count(ctx, t, try)
	}
	t.count = a.Count
	switch {
	case errors.Is(err, errTaken), errors.Is(err, errStashed):
		t.ruling = inboxwork.Gone
		c.done(ctx, t)
		return t.ack(), finished
	case err != nil:
		return c.outage(ctx, t, err), finished
	case a.Dead:
		return t.ack(), finished
	case a.Wait > 0:
		return t.back(a.Wait), finished
	case a.Count > c.opts.MaxAttempts && !try.TakeOver: // it could not be made a dead letter when it failed
		t.count--
		v, _ = c.bury(ctx, t, unfinished(t.count, a))
		return v, finished
	}
	t.begun = true
	return v, proceed
}

// errTaken means that a stashed message was applied meanwhile, with others of its
// key: its attempt count would stay for ever if this process ended now.
var errTaken = errors.New("taken out of the stash")

// errStashed means that a message of the source waits in the stash, where its attempts
// are counted.
var errStashed = errors.New("in the stash")

func (c *Consumer[Tx]) count(ctx context.Context, t *task, try inboxwork.Try) (a inboxwork.Attempt, err error) {
	err = c.book(ctx, func(ctx context.Context, conn inbox.Conn) (err error) {
		if t.stashed != nil && t.order != inbox.AnyOrder {
			if there, err := c.inbox.HoldStashed(ctx, conn, *t.stashed); err != nil {
				return err
			} else if !there {
				return errTaken
			}
		}
		a, err = c.inbox.BeginAttempt(ctx, conn, t.m, try)
		if err == nil && a.Stashed && t.stashed == nil {
			return errStashed
		}
		return err
	})
	return a, err
}

// guilty reports whether an orphan is to be given up: it has crashed the process
// while it ran alone, and has used all its attempts. These include the
// first delivery, which begin does not count.
func (c *Consumer[Tx]) guilty(t *task, a inboxwork.Attempt) (used int, yes bool) {
	used = a.Count
	if t.d.Attempt > a.Count+1 {
		used++
	}
	return used, a.Alone && used >= c.opts.MaxAttempts
}

func unfinished(attempts int, a inboxwork.Attempt) error {
	if !a.Orphan && a.LastError != "" {
		return errors.New(a.LastError)
	}
	return fmt.Errorf("%d attempts, the last of which never ended: the handler hung or crashed the process", attempts)
}

// book runs a transaction of the consumer's own. It has the time limit of a handler,
// so that a dead connection does not hold a slot for ever.
func (c *Consumer[Tx]) book(ctx context.Context, fn func(context.Context, inbox.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.HandlerTimeout)
	defer cancel()
	return c.db.Transact(ctx, func(_ Tx, conn inbox.Conn) error { return fn(ctx, conn) })
}

// takeBack uncounts an attempt that neither succeeded nor failed. It is best
// effort: if the database is still unreachable, the next begin of this process
// remembers that it has counted the attempt. The count stays only if the process
// ends before the database is back.
func (c *Consumer[Tx]) takeBack(ctx context.Context, t *task) {
	if !t.begun {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTimeout)
	defer cancel()
	err := c.book(ctx, func(ctx context.Context, conn inbox.Conn) error {
		return c.inbox.ReturnAttempt(ctx, conn, t.m, c.owner)
	})
	if err != nil {
		t.log().DebugContext(ctx, "attempt not taken back", "error", err)
	}
}

const takeBackTimeout = 2 * time.Second
