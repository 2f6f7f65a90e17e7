// Package consumer turns deliveries into effects, each once: it receives from a
// broker, claims the message in the inbox, runs the handler of its type in the
// same transaction, commits, and only then acknowledges.
//
//	c := consumer.New(source, consumer.SQL(db, dialect.Postgres), &consumer.Options{Name: "billing"})
//	consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, e OrderPlaced) error { ... })
//	err := c.Run(ctx)
package consumer

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/seal"
)

// Policy is how a consumer treats a message whose type has no handler.
type Policy uint8

// The policies for unknown types.
const (
	// Dead keeps the message as a dead letter.
	Dead Policy = iota
	// Skip acknowledges the message and forgets it: for a consumer that wants a
	// few types of a busy topic.
	Skip
	// Fail treats it like a handler's error, which leaves time for a newer
	// version of the program to take it; it is dead after MaxAttempts.
	Fail
)

// Options are the settings of a Consumer. Zero fields mean the defaults named.
type Options struct {
	// Name is the consumer's identity in the inbox. Required. Under another name
	// every message counts as new.
	Name string
	// Schema holds the inbox tables: that of [inbox.Options].
	Schema string
	// Concurrency is how many handlers run at once: 8. Messages of one key are
	// handled one after the other.
	Concurrency int
	// Prefetch is how many messages are in hand at most, waiting ones included:
	// four times Concurrency. A key whose handler hangs holds what waits behind it
	// for up to HandlerTimeout: where a key may have more messages at once than that,
	// raise it, and the other keys flow meanwhile.
	Prefetch int
	// PrefetchBytes is how many bytes they are at most: 64 MiB. Sources give by
	// number, so it is kept by the size of what came before: large messages behind
	// many small ones may exceed it once. A source has a bound of its own for what
	// it holds ready, MaxHeldBytes where there is one.
	PrefetchBytes int
	// Batch is how many messages share a transaction at most: 1. Their handlers
	// run one after the other, and when one fails all are rolled back and run
	// again, each in a transaction of its own. A message that was tried before is
	// never in a batch, nor are the first messages after the start where the
	// source does not count deliveries: one of them may have ended the process.
	// More than 1 raises Prefetch to twice Concurrency batches.
	Batch int
	// HandlerTimeout ends the context of a handler, or of a batch of them: 30 s.
	HandlerTimeout time.Duration
	// Horizon is how long after its effect the source can bring a message back; see
	// [inbox.Options].
	Horizon time.Duration
	// MaxAttempts is how often a message is tried before it is dead: 10. A try
	// that ends the process counts. The next one then runs while no other handler
	// does: only a message that ends the process alone is given up for that,
	// which takes one try more where MaxAttempts is 1.
	MaxAttempts int
	// BackoffMin is the delay after the first failure, doubled by each further
	// one up to BackoffMax, less up to a half at random: 1 s, 5 min.
	BackoffMin, BackoffMax time.Duration
	// Brake is how many messages in a row may become dead letters in this process
	// before no more do: 20; negative: any number. What fails then is given back and
	// tried again, at least every 10 s, until a handler's effect is committed: a
	// service that is away for an hour, or a program without its handlers, costs a
	// handful of dead letters. Handlers that run beside each other may add some.
	Brake int
	// UnknownType is what becomes of a message without a handler: Dead.
	UnknownType Policy
	// Order is how the messages of a key follow each other in a topic; nil:
	// [inbox.AnyOrder]. With [inbox.Latest] a message whose version, or a later one,
	// was applied is acknowledged without its handler. With [inbox.Contiguous] each
	// version is applied once and in turn; one that comes early is kept in the
	// database until those before it have been applied, and a dead letter
	// stops its key. A message without key or version is dead where there is an order.
	Order func(topic string) inbox.Order
	// Version is the position of a message in its key; nil: its Version.
	Version func(m postrider.Message) int64
	// OnGap is told of a key whose messages wait for versions that do not come, for
	// more than a minute and then after twice as long each time; nil: only the log
	// is. admin.SendMissing asks the outbox for what is missing.
	OnGap func(ctx context.Context, g inbox.Gap)
	// SkipGap gives up missing versions after this time: the key continues without
	// them, and what comes of them later is stale. 0: it waits for ever.
	SkipGap time.Duration
	// Opener decrypts a message for its handler; nil: none. What is kept of a
	// message, such as a dead letter, stays as it came.
	Opener Opener
	// Filter spares the database a transaction for most duplicates; nil: none.
	Filter Filter
	// FilterTimeout is how long it may take to answer, for all that came with one
	// Receive: 50 ms.
	FilterTimeout time.Duration
	// DrainTimeout is how long Run waits for running handlers when its context
	// has ended, before it ends theirs: 10 s.
	DrainTimeout time.Duration
	// Logger gets changes of state and failures, never a payload. nil: silent.
	Logger *slog.Logger
}

// Opener makes readable what an [github.com/postrider/postrider/outbox.Sealer]
// made unreadable; a [seal.Box] is one. It must not change its argument. An
// error that matches [seal.ErrErased] acknowledges the message without its
// handler: nobody can ever read it. [seal.ErrTampered] makes it dead at once,
// [seal.ErrUnknownKey], [seal.ErrNotSealed] and [github.com/postrider/postrider/claim.ErrGone] count as failed
// attempts of the handler. Any other error says that the keys are out of reach: the message is
// given back, and no attempt is counted.
type Opener interface {
	Open(ctx context.Context, m postrider.Message) (postrider.Message, error)
}

func (o *Options) defaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	d.Concurrency = orElse(d.Concurrency, 8)
	d.Batch = orElse(d.Batch, 1)
	d.Prefetch = max(orElse(d.Prefetch, 4*d.Concurrency), d.Concurrency)
	if d.Batch > 1 {
		d.Prefetch = max(d.Prefetch, 2*d.Concurrency*d.Batch)
	}
	d.PrefetchBytes = orElse(d.PrefetchBytes, 64<<20)
	d.HandlerTimeout = orElse(d.HandlerTimeout, 30*time.Second)
	d.MaxAttempts = orElse(d.MaxAttempts, 10)
	d.BackoffMin = orElse(d.BackoffMin, time.Second)
	if d.Brake == 0 {
		d.Brake = 20
	}
	d.BackoffMax = max(orElse(d.BackoffMax, 5*time.Minute), d.BackoffMin)
	d.FilterTimeout = orElse(d.FilterTimeout, 50*time.Millisecond)
	d.DrainTimeout = orElse(d.DrainTimeout, 10*time.Second)
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	return d
}

func orElse[N int | time.Duration](n, fallback N) N {
	if n <= 0 {
		return fallback
	}
	return n
}

// A Consumer handles the messages of one source. Tx is the transaction that its
// handlers get: *sql.Tx or pgx.Tx. Register handlers first, then call Run once.
type Consumer[Tx any] struct {
	source     broker.Source
	db         DB[Tx]
	inbox      *inboxwork.Inbox
	opts       Options
	owner      string // of the attempts begun here: another after every start
	handlers   map[string]Handler[Tx]
	middleware []func(next Handler[Tx]) Handler[Tx]
	wrapped    map[string]Handler[Tx] // handlers in their middleware, since Run
	database   trouble
	keys       trouble
	brake      brake
	excuses    excuses
	counts     counts
	singly     atomic.Int64  // how many messages of unknown attempt are not batched yet
	nudge      chan struct{} // holds a token when the stash may have something due
	err        error         // of registration, reported by Run
}

// New returns a Consumer of source with its inbox and its effects in db. It
// does no I/O. The inbox tables must be there when it runs: see [Consumer.Migrate].
func New[Tx any](source broker.Source, db DB[Tx], opts *Options) *Consumer[Tx] {
	o := opts.defaults()
	c := &Consumer[Tx]{source: source, db: db, opts: o, owner: rand.Text(), handlers: make(map[string]Handler[Tx]), nudge: make(chan struct{}, 1)}
	c.singly.Store(int64(2 * o.Prefetch))
	c.inbox = inboxwork.New(db.Dialect(), o.Name, &inbox.Options{Schema: o.Schema, Horizon: o.Horizon})
	if o.Name == "" {
		c.err = errors.New("consumer: Options.Name is empty: it is the consumer's identity in the inbox")
	}
	return c
}

// Migrate makes the inbox tables that are missing and brings older ones up, in a
// transaction of its own: see [inbox.Inbox.Migrate]. While running consumers hold a
// table that is to be changed it tries again, for a minute. Programs that start at
// once may all call it; a role that may not create tables may too, when they are there.
func (c *Consumer[Tx]) Migrate(ctx context.Context) error {
	err := inboxwork.Migrate(ctx, func() error {
		return c.db.Transact(ctx, func(_ Tx, conn inbox.Conn) error { return c.inbox.Migrate(ctx, conn) })
	})
	if err != nil {
		return fmt.Errorf("consumer %q: migrate: %w", c.opts.Name, err)
	}
	return nil
}

// Inbox returns the consumer's inbox, for example to list its dead letters.
func (c *Consumer[Tx]) Inbox() *inbox.Inbox { return c.inbox.Inbox }

// Handle registers fn for messages of typ; their payload is decoded from JSON
// into an E. A payload that is no such JSON makes the message dead at once.
//
// fn's effects belong into tx, which the consumer commits. What fn enqueues in tx
// with its ctx exists iff its other effects do, and names the message as its
// cause: see [outbox.CausedBy]. An error, a panic or
// the end of ctx rolls tx back, and the message is tried again later. The text
// of an error goes into the log and, its first 500 bytes, into the inbox tables,
// as it is: say what failed, not what the message holds. Of a panic only the
// type of its value is told.
//
// When the transaction fails because of the database (no connection, a conflict
// with another transaction) fn runs again and no attempt is counted; return the
// driver's errors wrapped with %w, so that this can be seen. A conflict that
// does not go away is an error of fn.
func Handle[Tx, E any](c *Consumer[Tx], typ string, fn func(ctx context.Context, tx Tx, e E) error) {
	c.HandleMessage(typ, func(ctx context.Context, tx Tx, m postrider.Message) error {
		var e E
		if m.Headers[seal.HeaderAlgorithm] != "" {
			return errSealed
		}
		if err := json.Unmarshal(m.Payload, &e); err != nil {
			return Permanent(fmt.Errorf("decode the payload as %T: %w", e, redact(err)))
		}
		return fn(ctx, tx, e)
	})
}

var (
	errSealed = errors.New("the message is sealed: set Options.Opener")
	errClaim  = errors.New("the payload stays in the database: set Options.Opener to a claim.Opener")
)

// HandleMessage registers fn for messages of typ, whole and undecoded; fn must
// not change the message. One whose payload stays in the database (package claim)
// fails where no [Opener] has fetched it. The rest is as for [Handle].
func (c *Consumer[Tx]) HandleMessage(typ string, fn func(ctx context.Context, tx Tx, m postrider.Message) error) {
	if _, twice := c.handlers[typ]; twice && c.err == nil {
		c.err = fmt.Errorf("consumer %q: two handlers for the type %q", c.opts.Name, typ)
	}
	c.handlers[typ] = c.timed(func(ctx context.Context, tx Tx, m postrider.Message) error {
		if m.Headers[envelope.DataRef] != "" && len(m.Payload) == 0 {
			return errClaim // an empty payload must not pass for the message's own
		}
		return fn(ctx, tx, m)
	})
}

// Permanent marks an error of a handler that no further try can repair: the
// message is dead at once.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// redact keeps what encoding/json says about place and type, not the value. The
// errors of other decoders (times, numbers, types that decode themselves) quote
// what they could not read: of these only the type is told.
func redact(err error) error {
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		return fmt.Errorf("field %q at byte %d is no %s", mismatch.Field, mismatch.Offset, mismatch.Type)
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("no JSON at byte %d", syntax.Offset)
	}
	return fmt.Errorf("a %T, whose text may quote the value", err)
}

// Run handles messages until ctx ends; then it lets running handlers finish
// within DrainTimeout, gives back the rest and returns nil. Any other return is
// a reason why the consumer cannot work.
func (c *Consumer[Tx]) Run(ctx context.Context) error {
	if c.err != nil {
		return c.err
	}
	c.wrap()
	r := newRun(c.source, c.opts, c.process)
	r.tend, r.batch = c.tendStash, c.processBatch
	if c.opts.Filter != nil {
		r.known = (&screen[Tx]{c: c}).known
		r.atLeast = max(c.opts.Prefetch/4, 1) // one question for many, not one for each
	}
	return r.run(ctx)
}
