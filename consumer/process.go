package consumer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
	"github.com/postrider/postrider/internal/inboxwork"
)

// process handles one delivery, except for the
// acknowledgement. The returned verdict may be passed to the source at once: for an
// Ack, the effect, the skip or the dead letter has been committed. With aside it
// asks for another call, in a last turn, instead.
func (c *Consumer[Tx]) process(ctx context.Context, d broker.Delivery, at turn) (v broker.Verdict, aside bool) {
	t := c.newTask(ctx, d)
	if d.Err != nil || !fit(t.m.ID) {
		return c.undecodable(ctx, t), false
	}
	h, known := c.wrapped[t.m.Type]
	switch {
	case t.misplaced != nil:
		h = func(context.Context, Tx, postrider.Message) error { return t.misplaced }
	case known:
	case c.opts.UnknownType == Dead:
		return c.giveUp(ctx, t, errUnknownType), false
	case c.opts.UnknownType == Fail:
		h = func(context.Context, Tx, postrider.Message) error { return errUnknownType }
	case t.leavesNothing():
		c.skip(ctx, t)
		return t.ack(), false
	default: // its version counts as applied, and its records are removed
		h, t.skipped = nothing[Tx], true
	}
	if t.counted {
		if v, next := c.begin(ctx, t, at); next != proceed {
			return v, next == aloneOnly
		}
	}
	switch erased, err := c.open(ctx, t); {
	case err != nil:
		return c.judge(ctx, t, err), false
	case erased:
		h = nothing[Tx]
	}
	return c.judge(ctx, t, c.effect(ctx, t, h)), false
}

// newTask returns the task of a delivery. A broker's first delivery is not counted
// before its handler runs, which spares the usual case a commit.
func (c *Consumer[Tx]) newTask(ctx context.Context, d broker.Delivery) *task {
	t := &task{}
	c.begins(ctx, t, d)
	return t
}

func (c *Consumer[Tx]) begins(ctx context.Context, t *task, d broker.Delivery) {
	*t = task{d: d, m: d.Message, readable: d.Message, counted: d.Attempt != 1, count: 1, consumer: c.opts.Name, logger: c.opts.Logger}
	if s, ok := d.Token.(inboxwork.Stashed); ok {
		t.stashed = &s
	}
	c.place(ctx, t)
}

// leavesNothing reports whether the database has no record of a message whose type has
// no handler: it is not in an ordered topic, not from the stash, and was
// not tried before.
func (t *task) leavesNothing() bool {
	ordered := t.order != inbox.AnyOrder && t.m.Key != "" && t.m.Version > 0
	return !ordered && t.stashed == nil && t.d.Attempt <= 1
}

func (c *Consumer[Tx]) skip(ctx context.Context, t *task) {
	c.counts.skipped.Add(1)
	t.log().DebugContext(ctx, "message without a handler skipped")
}

func nothing[Tx any](context.Context, Tx, postrider.Message) error { return nil }

var (
	errUnknownType = errors.New("no handler for the type")
	errOddID       = errors.New("the message's id must be UTF-8 text of at most 255 bytes")
)

// task is one delivery in process.
type task struct {
	d         broker.Delivery
	m         postrider.Message  // as received, and as stored
	readable  postrider.Message  // as passed to the handler
	counted   bool               // the attempt is committed before the handler runs
	begun     bool               // it was committed
	order     inbox.Order        // of its topic
	misplaced error              // why order and version are unknown
	stashed   *inboxwork.Stashed // its entry in the stash; nil: it comes from the source
	ruling    inboxwork.Ruling   // result of the last run of its transaction
	frees     bool               // messages of its key are in the stash
	skipped   bool               // its type has no handler, and needs none
	count     int                // attempts, this one included
	consumer  string             // the consumer's name
	logger    *slog.Logger
}

// log returns a logger with the message's attributes. Most messages need none.
func (t *task) log() *slog.Logger {
	return t.logger.With("consumer", t.consumer, "message", t.m.ID, "topic", t.m.Topic, "type", t.m.Type, "origin", t.d.Origin)
}

func (t *task) ack() broker.Verdict { return broker.Verdict{Delivery: t.d, Ack: true} }

func (t *task) back(delay time.Duration) broker.Verdict {
	return broker.Verdict{Delivery: t.d, Delay: delay}
}

// judge turns the outcome of the effect into a verdict.
func (c *Consumer[Tx]) judge(ctx context.Context, t *task, err error) broker.Verdict {
	var (
		failed *handlerError
		final  *permanentError
		away   *keysError
		slow   *timeoutError
	)
	switch {
	case err == nil:
		if c.database.worked() {
			c.opts.Logger.InfoContext(ctx, "database reachable again", "consumer", c.opts.Name)
		}
		c.done(ctx, t)
		return t.ack()
	case ctx.Err() != nil: // shutting down, after DrainTimeout
		c.takeBack(ctx, t)
		return t.back(0)
	case errors.As(err, &away):
		return c.giveBack(ctx, t, &c.keys, "keys", err)
	case !errors.As(err, &failed):
		return c.outage(ctx, t, err)
	case errors.As(err, &final):
		return c.giveUp(ctx, t, err)
	case errors.As(err, &slow) && c.frozen(ctx, t):
		return c.outage(ctx, t, err)
	}
	if t.counted && t.count >= c.opts.MaxAttempts || c.opts.MaxAttempts == 1 {
		return c.giveUp(ctx, t, err)
	}
	return c.retryLater(ctx, t, err)
}

func (c *Consumer[Tx]) retryLater(ctx context.Context, t *task, cause error) broker.Verdict {
	delay := c.backoff(t.count)
	var a inboxwork.Attempt
	err := c.book(ctx, func(ctx context.Context, conn inbox.Conn) (err error) {
		a, err = c.inbox.FailAttempt(ctx, conn, t.m, t.d.Origin, t.counted, delay, cause.Error())
		return err
	})
	if err != nil {
		return c.outage(ctx, t, errors.Join(cause, err))
	}
	if t.count = a.Count; t.count >= c.opts.MaxAttempts {
		return c.giveUp(ctx, t, cause)
	}
	c.counts.retries.Add(1)
	t.log().WarnContext(ctx, "handler failed", "attempt", a.Count, "of", c.opts.MaxAttempts, "in", delay, "error", cause)
	return t.back(delay)
}

// outage gives the delivery back because the database, not the handler, failed.
// No attempt is counted. An outage is logged once, and tries become rarer.
func (c *Consumer[Tx]) outage(ctx context.Context, t *task, err error) broker.Verdict {
	return c.giveBack(ctx, t, &c.database, "database", err)
}

func (c *Consumer[Tx]) giveBack(ctx context.Context, t *task, of *trouble, part string, err error) broker.Verdict {
	c.takeBack(ctx, t)
	if ctx.Err() != nil {
		return t.back(0)
	}
	c.level.givenBack(time.Now())
	first, lasted := of.failed(time.Now())
	delay := jitter(min(max(lasted/2, c.opts.BackoffMin), c.opts.BackoffMax, outageMax))
	level := slog.LevelDebug
	if first {
		level = slog.LevelError
	}
	t.log().Log(ctx, level, "messages given back", "part", part, "in", delay, "error", err)
	return t.back(delay)
}

// outageMax bounds the time between two tries while the database is unreachable.
const outageMax = 10 * time.Second

func (c *Consumer[Tx]) bury(ctx context.Context, t *task, cause error) (v broker.Verdict, buried bool) {
	err := c.book(ctx, func(ctx context.Context, conn inbox.Conn) (err error) {
		switch {
		case t.stashed != nil:
			buried, err = c.inbox.BuryStashed(ctx, conn, *t.stashed, t.count, cause.Error())
		case t.d.Err != nil:
			buried, err = c.inbox.BuryUndecodable(ctx, conn, t.m, t.d.Origin, t.count, cause.Error())
		default:
			buried, err = c.inbox.Bury(ctx, conn, t.m, t.d.Origin, t.count, cause.Error())
		}
		return err
	})
	if err != nil {
		return c.outage(ctx, t, errors.Join(cause, err)), false
	}
	c.excuses.forget(t.m.ID)
	if buried {
		c.counts.dead.Add(1)
		t.log().ErrorContext(ctx, "dead letter", "attempts", t.count, "error", cause)
	}
	return t.ack(), buried
}

// maxOrigin bounds what an id for a record without one has of its position, in bytes:
// the whole must fit.
const maxOrigin = 200

// undecodable makes a dead letter of a record without a message id, under an id derived from its
// position and bytes.
func (c *Consumer[Tx]) undecodable(ctx context.Context, t *task) broker.Verdict {
	cause := inbox.ErrNoID
	switch {
	case t.d.Err != nil:
		cause = t.d.Err
	case t.m.ID != "":
		cause = errOddID
	}
	if !fit(t.m.ID) {
		h := sha256.New()
		h.Write([]byte(t.m.ID + "\x00" + t.m.Topic + "\x00" + t.m.Key + "\x00"))
		h.Write(t.m.Payload)
		origin := inboxsql.Clean(t.d.Origin, maxOrigin)
		if origin != t.d.Origin {
			h.Write([]byte("\x00" + t.d.Origin))
		}
		t.m.ID = fmt.Sprintf("undecodable:%s:%x", origin, h.Sum(nil)[:8])
	}
	return c.giveUp(ctx, t, cause)
}

// backoff is the delay after the nth failed attempt.
func (c *Consumer[Tx]) backoff(n int) time.Duration {
	d := c.opts.BackoffMin
	for i := 1; i < n && d < c.opts.BackoffMax; i++ {
		d *= 2
	}
	return jitter(min(d, c.opts.BackoffMax))
}

// jitter subtracts a random part of up to a half.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/2+1) }
