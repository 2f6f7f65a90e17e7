package seek

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/uuidv7"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Outbox is how a store looks for a message. Its functions return errors of the database as
// they are.
type Outbox struct {
	Pipe string // for errors
	// Ends returns the lowest number and the one above the highest; both 0: no rows.
	Ends  func(ctx context.Context) (low, high int64, err error)
	Probe Probe
	// Among looks for the message among the numbers from from, to excluded.
	Among func(ctx context.Context, from, to int64) (found bool, err error)
	// Wrap names the store in an error of the database.
	Wrap func(what string, err error) error
}

const what = "find a message"

// Find calls Among with wider and wider ranges around the time of the message's enqueue,
// which is that of q or of its id, until the message is found. Otherwise it returns an error
// that is [store.ErrNotFound] and has the searched range.
func (o *Outbox) Find(ctx context.Context, q ops.MessageQuery) error {
	at, ok := q.At, true
	if at.IsZero() {
		at, ok = uuidv7.Time(strings.ToLower(q.ID))
	}
	if !ok {
		return fmt.Errorf("message %s of pipe %q: %w among parked records, and its id has no time, because it is not a UUIDv7: name the time of its enqueue", q.ID, o.Pipe, store.ErrNotFound)
	}
	low, high, err := o.Ends(ctx)
	if err != nil {
		return o.Wrap(what, err)
	}
	near, err := First(ctx, low, high, at, o.Probe)
	if err != nil {
		return o.Wrap(what, err)
	}
	var from, to int64
	for _, reach := range reaches() {
		from, to = max(near-reach, low), min(near+reach, high)
		if found, err := o.Among(ctx, from, to); found || err != nil {
			return o.Wrap(what, err)
		}
		if from == low && to == high {
			break
		}
	}
	if from >= to {
		return fmt.Errorf("message %s of pipe %q: %w: the outbox has no rows; retention has removed it, or it was never committed", q.ID, o.Pipe, store.ErrNotFound)
	}
	first, _, err := o.Probe(ctx, from)
	if err != nil {
		return o.Wrap(what, err)
	}
	return fmt.Errorf("message %s of pipe %q: %w: enqueued about %s, it is expected among the numbers %d to %d (from %s on); "+
		"it was never committed, retention has removed it, or its writer's clock is wrong: then name the time of its enqueue",
		q.ID, o.Pipe, store.ErrNotFound, at.Format(time.RFC3339Nano), from, to-1, first.At.UTC().Format(time.RFC3339))
}
