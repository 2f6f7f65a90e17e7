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

// step is what comes after begin.
type step uint8

const (
	proceed   step = iota // run the handler
	finished              // the verdict is there
	aloneOnly             // return when no other handler runs
)

// begin counts the attempt in a transaction of its own. It is skipped for the
// first delivery, which spares the happy path a commit. A source that does not
// know the number of a delivery pays the commit always.
//
// An attempt that was begun and never ended, by a process that is not this one,
// may have ended that process; so may any that ran beside it. The message is
// therefore set aside until it can run alone, and only when the process ends
// once more then is it proven which message does that.
func (c *Consumer[Tx]) begin(ctx context.Context, t *task, at turn) (v broker.Verdict, next step) {
	try := inboxwork.Try{Origin: t.d.Origin, Owner: c.owner, Alone: at.alone}
	a, err := c.count(ctx, t, try)
	if err == nil && a.Orphan {
		if used, guilty := c.guilty(t, a); guilty {
			t.count = used
			v, _ = c.bury(ctx, t, unfinished(used, a)) // proven, whatever becomes of the others
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
	case errors.Is(err, errTaken):
		return t.ack(), finished
	case err != nil:
		return c.outage(ctx, t, err), finished
	case a.Dead:
		return t.ack(), finished
	case a.Wait > 0:
		return t.back(a.Wait), finished
	case a.Count > c.opts.MaxAttempts && !try.TakeOver: // it could not be buried when it failed
		t.count--
		v, _ = c.bury(ctx, t, unfinished(t.count, a))
		return v, finished
	}
	t.begun = true
	return v, proceed
}

// errTaken says that a stashed message was applied meanwhile, with others of its
// key: a count of it would be left for ever if this process ended now.
var errTaken = errors.New("taken out of the stash")

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
		return err
	})
	return a, err
}

// guilty says whether an orphan is to be given up: it has ended the process
// while it ran alone, and has used all its attempts. For such a message that
// includes a first delivery, which is not counted.
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
	return fmt.Errorf("%d attempts, the last of which did not come to an end: the handler hung or ended the process", attempts)
}

// book runs a transaction of the consumer's own. It is limited like a handler,
// so that a connection that swallows everything does not hold a slot for ever.
func (c *Consumer[Tx]) book(ctx context.Context, fn func(context.Context, inbox.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.HandlerTimeout)
	defer cancel()
	return c.db.Transact(ctx, func(_ Tx, conn inbox.Conn) error { return fn(ctx, conn) })
}

// takeBack uncounts an attempt that neither succeeded nor failed. It is an
// effort only: when the database is still away, the next begin of this process
// knows that it has counted already. It is counted for good only if the process
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
