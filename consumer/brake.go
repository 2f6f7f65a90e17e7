package consumer

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/postrider/postrider/broker"
)

// brake stops dead letters when every message fails: then not the messages are at
// fault but a dependency of their handlers, or the program. Waiting costs less
// than a night of work on a pile of dead letters.
type brake struct {
	dead atomic.Int64 // dead letters in a row, without an effect between them
	trouble
}

func (c *Consumer[Tx]) braked() bool {
	return c.opts.Brake > 0 && c.brake.dead.Load() >= int64(c.opts.Brake)
}

// giveUp makes a dead letter. Above [Options].Brake dead letters in a row it gives the
// message back instead, with the attempt that it has just used.
func (c *Consumer[Tx]) giveUp(ctx context.Context, t *task, cause error) broker.Verdict {
	if c.braked() {
		return c.giveBack(ctx, t, &c.brake.trouble, "handlers", fmt.Errorf("%d dead letters in a row, so no more are made until a message succeeds: %w", c.brake.dead.Load(), cause))
	}
	v, buried := c.bury(ctx, t, cause)
	if buried {
		c.brake.dead.Add(1)
	}
	return v
}

// applied releases the brake after an effect, which shows that the handlers work.
func (c *Consumer[Tx]) applied(ctx context.Context) {
	if c.brake.dead.Load() != 0 {
		c.brake.dead.Store(0)
	}
	if c.brake.worked() {
		c.opts.Logger.InfoContext(ctx, "handlers recovered", "consumer", c.opts.Name)
	}
}
