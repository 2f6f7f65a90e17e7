package consumer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/inbox"
)

// conflictRetries is how often a transaction that the database gave up is run
// again at once, before that counts as a failed attempt.
const conflictRetries = 3

// process decides what becomes of one delivery and does it, but for the
// acknowledgement. It returns a verdict that may be acted on at once: when it
// says Ack, the effect, the skip or the dead letter has been committed.
func (c *Consumer[Tx]) process(ctx context.Context, d broker.Delivery) broker.Verdict {
	t := &task{d: d, m: d.Message, counted: d.Attempt != 1, count: 1}
	t.log = c.opts.Logger.With("consumer", c.opts.Name, "message", t.m.ID, "topic", t.m.Topic, "type", t.m.Type, "origin", d.Origin)
	if d.Err != nil || t.m.ID == "" {
		return c.undecodable(ctx, t)
	}
	h, known := c.handlers[t.m.Type]
	switch {
	case known:
	case c.opts.UnknownType == Skip:
		t.log.DebugContext(ctx, "skipped: no handler for the type")
		return t.ack()
	case c.opts.UnknownType == Dead:
		return c.bury(ctx, t, errUnknownType)
	default:
		h = func(context.Context, Tx, postrider.Message) error { return errUnknownType }
	}
	if t.counted {
		if v, stop := c.begin(ctx, t); stop {
			return v
		}
	}
	return c.judge(ctx, t, c.effect(ctx, t, h))
}

var errUnknownType = errors.New("no handler for the type")

// task is one delivery on its way.
type task struct {
	d       broker.Delivery
	m       postrider.Message
	counted bool // the attempt is committed before the handler runs
	count   int  // attempts, this one included
	log     *slog.Logger
}

func (t *task) ack() broker.Verdict { return broker.Verdict{Delivery: t.d, Ack: true} }

func (t *task) back(delay time.Duration) broker.Verdict {
	return broker.Verdict{Delivery: t.d, Delay: delay}
}

// begin counts the attempt in a transaction of its own. It is skipped for the
// first delivery, which spares the happy path a commit; a first delivery that
// ends the process is taken into account by the second one. A source that does
// not know the number of a delivery pays the commit always.
func (c *Consumer[Tx]) begin(ctx context.Context, t *task) (v broker.Verdict, stop bool) {
	first := 1
	if t.d.Attempt > 1 {
		first = 2
	}
	var a inbox.Attempt
	err := c.db.Transact(ctx, func(_ Tx, conn inbox.Conn) (err error) {
		a, err = c.inbox.BeginAttempt(ctx, conn, t.m, t.d.Origin, first)
		return err
	})
	t.count = a.Count
	switch {
	case err != nil:
		return c.outage(ctx, t, err), true
	case a.Dead:
		return t.ack(), true
	case a.Wait > 0:
		return t.back(a.Wait), true
	case a.Count > c.opts.MaxAttempts:
		return c.bury(ctx, t, fmt.Errorf("%d attempts did not come to an end: the handler hung or ended the process", c.opts.MaxAttempts)), true
	}
	return v, false
}

// handlerError is what went wrong inside a handler, as opposed to around it.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// effect claims the message, runs the handler and commits.
func (c *Consumer[Tx]) effect(ctx context.Context, t *task, h handler[Tx]) error {
	for try := 0; ; try++ {
		err := c.effectOnce(ctx, t, h)
		var again *inbox.RetryableError
		if !errors.As(inbox.Classify(err), &again) || try == conflictRetries || ctx.Err() != nil {
			return err
		}
		t.log.DebugContext(ctx, "the database asks to run the transaction again", "code", again.Code)
	}
}

func (c *Consumer[Tx]) effectOnce(ctx context.Context, t *task, h handler[Tx]) error {
	limited, cancel := context.WithTimeout(ctx, c.opts.HandlerTimeout)
	defer cancel()
	entered := false
	err := c.db.Transact(limited, func(tx Tx, conn inbox.Conn) error {
		fresh, err := c.inbox.Claim(limited, conn, t.m)
		if err != nil {
			return err
		}
		if fresh {
			entered = true
			if err := protect(limited, t, tx, h); err != nil {
				return &handlerError{err}
			}
		}
		if t.counted {
			return c.inbox.ForgetAttempts(limited, conn, t.m)
		}
		return nil
	})
	if err != nil && entered && limited.Err() != nil && ctx.Err() == nil {
		return &handlerError{fmt.Errorf("the handler took longer than %v: %w", c.opts.HandlerTimeout, err)}
	}
	return err
}

// protect runs h and makes an error of a panic.
func protect[Tx any](ctx context.Context, t *task, tx Tx, h handler[Tx]) (err error) {
	defer func() {
		if p := recover(); p != nil {
			t.log.ErrorContext(ctx, "the handler panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("the handler panicked: %v", p)
		}
	}()
	return h(ctx, tx, t.m)
}

// judge turns the outcome of the effect into a verdict.
func (c *Consumer[Tx]) judge(ctx context.Context, t *task, err error) broker.Verdict {
	var (
		failed *handlerError
		final  *permanentError
	)
	switch {
	case err == nil:
		return t.ack()
	case ctx.Err() != nil: // shutting down, and out of patience
		return t.back(0)
	case !errors.As(err, &failed):
		return c.outage(ctx, t, err)
	case errors.As(err, &final):
		return c.bury(ctx, t, err)
	}
	if t.counted && t.count >= c.opts.MaxAttempts || c.opts.MaxAttempts == 1 {
		return c.bury(ctx, t, err)
	}
	return c.retryLater(ctx, t, err)
}

func (c *Consumer[Tx]) retryLater(ctx context.Context, t *task, cause error) broker.Verdict {
	delay := c.backoff(t.count)
	var a inbox.Attempt
	err := c.db.Transact(ctx, func(_ Tx, conn inbox.Conn) (err error) {
		a, err = c.inbox.FailAttempt(ctx, conn, t.m, t.d.Origin, t.counted, delay, cause.Error())
		return err
	})
	if err != nil {
		return c.outage(ctx, t, errors.Join(cause, err))
	}
	if t.count = a.Count; t.count >= c.opts.MaxAttempts {
		return c.bury(ctx, t, cause)
	}
	t.log.WarnContext(ctx, "the handler failed; the message is tried again", "attempt", a.Count, "of", c.opts.MaxAttempts, "in", delay, "error", cause)
	return t.back(delay)
}

// outage gives the delivery back because the database, not the handler, failed.
// No attempt is counted.
func (c *Consumer[Tx]) outage(ctx context.Context, t *task, err error) broker.Verdict {
	if ctx.Err() != nil {
		return t.back(0)
	}
	delay := c.backoff(2)
	t.log.ErrorContext(ctx, "the database failed; the message is given back", "in", delay, "error", err)
	return t.back(delay)
}

func (c *Consumer[Tx]) bury(ctx context.Context, t *task, cause error) broker.Verdict {
	var buried bool
	err := c.db.Transact(ctx, func(_ Tx, conn inbox.Conn) (err error) {
		buried, err = c.inbox.Bury(ctx, conn, t.m, t.d.Origin, t.count, cause.Error())
		return err
	})
	if err != nil {
		return c.outage(ctx, t, errors.Join(cause, err))
	}
	if buried {
		t.log.ErrorContext(ctx, "the message is dead", "attempts", t.count, "error", cause)
	}
	return t.ack()
}

// undecodable buries what has no id to claim, under one made of its place and bytes.
func (c *Consumer[Tx]) undecodable(ctx context.Context, t *task) broker.Verdict {
	cause := inbox.ErrNoID
	if t.d.Err != nil {
		cause = t.d.Err
	}
	if t.m.ID == "" {
		h := sha256.New()
		h.Write([]byte(t.m.Topic + "\x00" + t.m.Key + "\x00"))
		h.Write(t.m.Payload)
		t.m.ID = fmt.Sprintf("undecodable:%s:%x", t.d.Origin, h.Sum(nil)[:8])
	}
	return c.bury(ctx, t, cause)
}

// backoff is the delay after the nth failed attempt.
func (c *Consumer[Tx]) backoff(n int) time.Duration {
	d := c.opts.BackoffMin
	for i := 1; i < n && d < c.opts.BackoffMax; i++ {
		d *= 2
	}
	d = min(d, c.opts.BackoffMax)
	return d - rand.N(d/2+1) //nolint:gosec // jitter, not a secret
}
