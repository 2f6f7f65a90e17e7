package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/postrider/postrider/inbox"
)

// frozenAfter is how long a database may take to answer before a handler that ran
// out of time is excused.
const frozenAfter = 2 * time.Second

// excuses remembers which messages were excused, and how often. A pool whose
// connections are all held by handlers that hang looks like a frozen database: a
// message is therefore excused as often as it may be tried, and then counted.
type excuses struct {
	mu   sync.Mutex
	used map[string]int
}

// mostExcuses bounds the messages that are remembered.
const mostExcuses = 10_000

func (e *excuses) take(id string, limit int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.used[id] >= limit || e.used[id] == 0 && len(e.used) >= mostExcuses {
		return false
	}
	if e.used == nil {
		e.used = make(map[string]int)
	}
	e.used[id]++
	return true
}

func (e *excuses) forget(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.used, id)
}

// frozen reports whether the database, and not the handler, used up the handler's
// time. A process or host that is stopped keeps its connections and answers
// nothing, so a statement in the handler waits until the time is over. The
// database is asked anew: an answer that is missing or late excuses the handler.
func (c *Consumer[Tx]) frozen(ctx context.Context, t *task) bool {
	asked := time.Now()
	err := c.book(ctx, func(context.Context, inbox.Conn) error { return nil })
	if err == nil && time.Since(asked) < frozenAfter {
		c.excuses.forget(t.m.ID)
		return false
	}
	return err != nil || c.excuses.take(t.m.ID, c.opts.MaxAttempts)
}
