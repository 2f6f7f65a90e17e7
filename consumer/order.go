package consumer

import (
	"context"
	"errors"

	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// place determines the message's order and version. A panic of the options'
// functions counts as an error of the message's handler.
func (c *Consumer[Tx]) place(ctx context.Context, t *task) {
	if c.opts.Order == nil && c.opts.Version == nil {
		return
	}
	t.misplaced = guarded(ctx, t.log, "Options.Order or Options.Version", func() error {
		if c.opts.Order != nil {
			t.order = c.opts.Order(t.m.Topic)
		}
		if c.opts.Version != nil && t.stashed == nil {
			t.m.Version = c.opts.Version(t.m)
			t.readable.Version = t.m.Version
		}
		return nil
	})
	if t.misplaced != nil {
		t.order = inbox.AnyOrder
	}
}

// take claims the message inside its transaction, and checks whether it is its turn.
func (c *Consumer[Tx]) take(ctx context.Context, conn inbox.Conn, t *task) (inboxwork.Ruling, error) {
	ruling, err := c.turnOf(ctx, conn, t)
	if errors.Is(err, inboxwork.ErrNoPlace) {
		err = &handlerError{Permanent(err)}
	}
	return ruling, err
}

func (c *Consumer[Tx]) turnOf(ctx context.Context, conn inbox.Conn, t *task) (ruling inboxwork.Ruling, err error) {
	if t.stashed != nil {
		return c.inbox.TakeStashed(ctx, conn, *t.stashed, t.order)
	}
	if fresh, err := c.inbox.Claim(ctx, conn, t.m); err != nil || !fresh {
		return inboxwork.Gone, err
	}
	ruling, t.frees, err = c.inbox.Guard(ctx, conn, t.m, t.order, t.d.Origin)
	return ruling, err
}

// done counts the outcome of a message, and continues with messages that waited for it.
func (c *Consumer[Tx]) done(ctx context.Context, t *task) {
	c.excuses.forget(t.m.ID)
	switch t.ruling {
	case inboxwork.Gone:
		if t.stashed == nil {
			c.counts.duplicates.Add(1)
		}
	case inboxwork.Stale:
		c.counts.stale.Add(1)
		t.log().DebugContext(ctx, "stale message dropped", "version", t.m.Version)
	case inboxwork.Early:
		c.counts.stashed.Add(1)
		t.log().DebugContext(ctx, "early message stashed", "version", t.m.Version)
	case inboxwork.Apply:
		if t.skipped {
			c.counts.skipped.Add(1)
		} else {
			c.counts.effect(t.m.Time)
			c.applied(ctx)
		}
		if t.frees || t.stashed != nil && t.order == inbox.Contiguous {
			c.catchUp(ctx, t)
		}
	}
}

func (c *Consumer[Tx]) wakeStash() {
	select {
	case c.nudge <- struct{}{}:
	default:
	}
}
