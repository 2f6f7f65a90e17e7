package consumer

import (
	"context"
	"errors"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// errTried means that a batch contains a message that was tried before.
var errTried = errors.New("a message of the batch was tried before")

// batch is several messages in one transaction.
type batch[Tx any] struct {
	tasks    []task
	handlers []Handler[Tx]
	msgs     []postrider.Message
	skipped  []task // without a handler: the database has no record of them and needs none
	unknown  bool   // the source does not count deliveries
}

// processBatch is [Consumer.process] for several deliveries in one
// transaction. If it returns false nothing has happened, and each delivery must
// be processed individually, which also logs and counts failures.
func (c *Consumer[Tx]) processBatch(ctx context.Context, ds []broker.Delivery) bool {
	b := batch[Tx]{tasks: make([]task, 0, len(ds)), handlers: make([]Handler[Tx], 0, len(ds)), msgs: make([]postrider.Message, 0, len(ds))}
	for i := range ds {
		if ds[i].Attempt == 0 && !c.readMarks(ctx) {
			return false
		}
		if !c.join(ctx, &b, ds[i]) {
			return false
		}
	}
	unmark, err := c.mark(ctx, &b)
	if err == nil {
		err = c.commitBatch(ctx, &b)
		unmark()
	}
	if err != nil {
		c.opts.Logger.DebugContext(ctx, "batch split after a failure", "consumer", c.opts.Name, "messages", len(ds), "error", err)
		return false
	}
	for i := range b.tasks {
		c.done(ctx, &b.tasks[i])
	}
	for i := range b.skipped {
		c.skip(ctx, &b.skipped[i])
	}
	return true
}

func (c *Consumer[Tx]) commitBatch(ctx context.Context, b *batch[Tx]) error {
	if len(b.tasks) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.opts.HandlerTimeout)
	defer cancel()
	return c.db.Transact(ctx, func(tx Tx, conn inbox.Conn) error { return c.batchEffect(ctx, tx, conn, b) })
}

// join adds a delivery to the batch. It returns false if the delivery needs more than its handler.
func (c *Consumer[Tx]) join(ctx context.Context, b *batch[Tx], d broker.Delivery) bool {
	b.tasks = append(b.tasks, task{})
	t := &b.tasks[len(b.tasks)-1]
	c.begins(ctx, t, d)
	h, known := c.wrapped[t.m.Type]
	if d.Err != nil || t.misplaced != nil || !fit(t.m.ID) || d.Attempt > 1 || d.Attempt == 0 && c.marks.has(t.m.ID) {
		return false
	}
	switch {
	case known:
	case c.opts.UnknownType != Skip:
		return false
	case t.leavesNothing():
		b.skipped, b.tasks = append(b.skipped, *t), b.tasks[:len(b.tasks)-1]
		return true
	default:
		h, t.skipped = nothing[Tx], true
	}
	erased, err := c.open(ctx, t)
	if err != nil {
		return false
	}
	if erased {
		h = nothing[Tx]
	}
	b.handlers, b.msgs = append(b.handlers, h), append(b.msgs, t.m)
	b.unknown = b.unknown || d.Attempt == 0
	return true
}

func (c *Consumer[Tx]) batchEffect(ctx context.Context, tx Tx, conn inbox.Conn, b *batch[Tx]) error {
	if b.unknown {
		if tried, err := c.inbox.Tried(ctx, conn, b.msgs); err != nil {
			return err
		} else if tried {
			return errTried
		}
	}
	fresh, err := c.inbox.ClaimBatch(ctx, conn, b.msgs)
	if err != nil {
		return err
	}
	var at int64 // of the claims
	for i := range b.tasks {
		t := &b.tasks[i]
		if t.ruling = inboxwork.Gone; !fresh[i] {
			continue
		}
		if at == 0 {
			if at, err = c.inbox.ClaimedAt(ctx, conn, t.m); err != nil {
				return err
			}
		}
		if t.ruling, t.frees, err = c.inbox.Guard(ctx, conn, t.m, t.order, t.d.Origin); err != nil {
			return err
		}
		if t.ruling != inboxwork.Apply {
			continue
		}
		if err := c.protect(ctx, t, tx, b.handlers[i], len(b.tasks)); err != nil {
			return err
		}
		if err := c.inbox.Holds(ctx, conn, t.m, at); err != nil {
			return err
		}
	}
	return nil
}
