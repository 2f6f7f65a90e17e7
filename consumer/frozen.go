package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/postrider/postrider/inbox"
)

// frozenAfter is the time of an answer of the database above which a handler that ran
// out of time is excused.
const frozenAfter = 2 * time.Second

// excuses records which messages were excused, and how often. A pool whose
// connections are all held by hanging handlers looks like a frozen database.
// Therefore a message is excused at most MaxAttempts times, and then counted.
type excuses struct {
	mu   sync.Mutex
	used map[string]int
}

// mostExcuses bounds the number of remembered messages. Above it an arbitrary one is forgotten: its
// count starts again at 0, so its dead letter comes later, and no message becomes one for it.
const mostExcuses = 10_000

func (e *excuses) take(id string, limit int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.used[id] >= limit {
		return false
	}
	if e.used[id] == 0 && len(e.used) >= mostExcuses {
		for other := range e.used {
			delete(e.used, other)
			break
		}
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
// time. A stopped process or host keeps its connections and never
// answers, so a statement in the handler waits until the timeout. frozen makes a new
// request to the database: a missing or late answer excuses the handler.
func (c *Consumer[Tx]) frozen(ctx context.Context, t *task) bool {
	asked := time.Now()
	err := c.book(ctx, func(context.Context, inbox.Conn) error { return nil })
	if err == nil && time.Since(asked) < frozenAfter {
		c.excuses.forget(t.m.ID)
		return false
	}
	return err != nil || c.excuses.take(t.m.ID, c.opts.MaxAttempts)
}
