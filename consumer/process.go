package consumer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"strings"
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
	if !c.turns.take(ctx) {
		return t.back(0)
	}
	v, suspect := c.attempt(ctx, t, h, false)
	c.turns.leave()
	if suspect {
		leave := c.turns.takeAll(ctx, c.opts.HandlerTimeout)
		defer leave()
		v, _ = c.attempt(ctx, t, h, true)
	}
	return v
}

// attempt counts the attempt when it must, and makes it. When the message has
// been there when several attempts did not come to an end, it does nothing but
// say so, unless nothing else runs now.
func (c *Consumer[Tx]) attempt(ctx context.Context, t *task, h handler[Tx], alone bool) (v broker.Verdict, suspect bool) {
	if t.counted {
		switch v, next := c.begin(ctx, t, alone); next {
		case stopHere:
			return v, false
		case runAlone:
			return v, true
		case goOn:
		}
	}
	return c.judge(ctx, t, c.effect(ctx, t, h)), false
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
func (c *Consumer[Tx]) begin(ctx context.Context, t *task, alone bool) (v broker.Verdict, then next) {
	first := 1
	if t.d.Attempt > 1 {
		first = 2
	}
	var a inbox.Attempt
	err := c.db.Transact(ctx, func(_ Tx, conn inbox.Conn) (err error) {
		a, err = c.inbox.BeginAttempt(ctx, conn, t.m, t.d.Origin, first)
		running := !a.Dead && a.Wait == 0 && a.Count <= c.opts.MaxAttempts
		if err == nil && running && !alone && a.Open >= min(suspectFrom, max(c.opts.MaxAttempts, 2)) {
			return errSuspect // nothing is counted yet
		}
		return err
	})
	t.count = a.Count
	switch {
	case errors.Is(err, errSuspect):
		return v, runAlone
	case err != nil:
		return c.outage(ctx, t, err), stopHere
	case a.Dead:
		return t.ack(), stopHere
	case a.Wait > 0:
		return t.back(a.Wait), stopHere
	case a.Count > c.opts.MaxAttempts:
		return c.bury(ctx, t, fmt.Errorf("%d attempts did not come to an end: the handler hung or ended the process", c.opts.MaxAttempts)), stopHere
	}
	return v, goOn
}

// next is what follows after an attempt was counted or not.
type next uint8

const (
	goOn     next = iota // make the attempt
	stopHere             // the verdict is there
	runAlone             // nothing was counted: make it when nothing else runs
)

// suspectFrom is the attempt that a message makes alone when none of the ones
// before it came to an end.
const suspectFrom = 3

var errSuspect = errors.New("attempts did not come to an end")

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
	switch {
	case err == nil || !entered || ctx.Err() != nil:
		return err
	case limited.Err() != nil:
		return &handlerError{fmt.Errorf("the handler took longer than %v: %w", c.opts.HandlerTimeout, err)}
	case refused(err):
		return &handlerError{err}
	}
	return err
}

// refused reports whether the database did not take what the handler wrote,
// which it may say as late as at the commit: a deferred constraint or trigger.
func refused(err error) bool {
	var pg interface{ SQLState() string }
	if errors.As(err, &pg) {
		code := pg.SQLState()
		return strings.HasPrefix(code, "23") || strings.HasPrefix(code, "P0")
	}
	var lite interface {
		error
		Code() int
	}
	const constraint = 19 // extended codes keep the primary one in the low byte
	return errors.As(err, &lite) && lite.Code()&0xff == constraint
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
		if c.database.worked() {
			c.opts.Logger.InfoContext(ctx, "the database works again", "consumer", c.opts.Name)
		}
		return t.ack()
	case ctx.Err() != nil: // shutting down, and out of patience
		c.undo(ctx, t)
		return t.back(0)
	case !errors.As(err, &failed):
		c.undo(ctx, t)
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

// undo takes back an attempt that was counted and broken off through no fault of
// the message. When that fails too, it stays counted, as after a crash.
func (c *Consumer[Tx]) undo(ctx context.Context, t *task) {
	if !t.counted {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	err := c.db.Transact(ctx, func(_ Tx, conn inbox.Conn) error { return c.inbox.UndoAttempt(ctx, conn, t.m) })
	if err != nil {
		t.log.DebugContext(ctx, "an attempt stays counted", "error", err)
	}
}

const undoTimeout = 2 * time.Second

// outage gives the delivery back because the database, not the handler, failed.
// No attempt is counted. An outage is told once, and tries grow rare.
func (c *Consumer[Tx]) outage(ctx context.Context, t *task, err error) broker.Verdict {
	if ctx.Err() != nil {
		return t.back(0)
	}
	first, lasted := c.database.failed(time.Now())
	delay := jitter(min(max(lasted/2, c.opts.BackoffMin), c.opts.BackoffMax, outageMax))
	level := slog.LevelDebug
	if first {
		level = slog.LevelError
	}
	t.log.Log(ctx, level, "the database failed; messages are given back", "in", delay, "error", err)
	return t.back(delay)
}

// outageMax bounds the time between two tries while the database is away.
const outageMax = 10 * time.Second

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
	return jitter(min(d, c.opts.BackoffMax))
}

// jitter takes off up to a half.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/2+1) }
