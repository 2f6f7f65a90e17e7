package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// marks are the records of batches whose source counts no deliveries: see
// [inboxwork.Inbox.MarkBatch].
type marks struct {
	mu       sync.Mutex
	free     []int // slots of this process without a batch
	used     bool  // there is something to forget
	suspects inboxwork.Suspects
	read     time.Time // of the suspects; zero: never
}

// marksEvery is the time after which the batches of other processes are read again: before a
// broker delivers the messages of a process that has ended to another one, mostly.
const marksEvery = 10 * time.Second

func (m *marks) has(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.suspects.Has(id)
}

// readMarks reads the batches of other processes if that is due, and returns false if they are unknown.
func (c *Consumer[Tx]) readMarks(ctx context.Context) bool {
	m := &c.marks
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.read.IsZero() && time.Since(m.read) < marksEvery {
		return true
	}
	err := c.book(ctx, func(ctx context.Context, conn inbox.Conn) (err error) {
		m.suspects, err = c.inbox.Suspects(ctx, conn, c.owner)
		return err
	})
	if err != nil {
		c.opts.Logger.DebugContext(ctx, "batches of other processes not read", "consumer", c.opts.Name, "error", err)
		return false
	}
	m.read = time.Now()
	return true
}

// mark records a batch of unknown attempts. A message in it that ends the process is counted
// when it is delivered again. It costs the batch one commit, and its messages none.
func (c *Consumer[Tx]) mark(ctx context.Context, b *batch[Tx]) (unmark func(), err error) {
	if !b.unknown || len(b.tasks) == 0 {
		return func() {}, nil
	}
	m := &c.marks
	m.mu.Lock()
	slot := m.free[len(m.free)-1] // there are as many as handlers that may run at once
	m.free, m.used = m.free[:len(m.free)-1], true
	m.mu.Unlock()
	unmark = func() {
		m.mu.Lock()
		m.free = append(m.free, slot)
		m.mu.Unlock()
	}
	err = c.book(ctx, func(ctx context.Context, conn inbox.Conn) error {
		return c.inbox.MarkBatch(ctx, conn, c.owner, slot, b.msgs)
	})
	if err != nil {
		unmark()
	}
	return unmark, err
}

// endMarks forgets the batches of this process, which ends, and very old ones of others. It is
// best effort: what stays makes its messages run singly, if they are delivered again.
func (c *Consumer[Tx]) endMarks(ctx context.Context) {
	if !c.marks.used {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTimeout)
	defer cancel()
	err := c.book(ctx, func(ctx context.Context, conn inbox.Conn) error {
		return c.inbox.ForgetBatches(ctx, conn, c.owner, max(c.opts.Horizon, inbox.DefaultHorizon))
	})
	if err != nil {
		c.opts.Logger.DebugContext(ctx, "batches not forgotten", "consumer", c.opts.Name, "error", err)
	}
}
