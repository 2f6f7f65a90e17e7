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
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/internal/redact"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/seal"
)

// Policy is the treatment of a message whose type has no handler.
type Policy uint8

// The policies for unknown types.
const (
	// Dead keeps the message as a dead letter.
	Dead Policy = iota
	// Skip acknowledges the message and forgets it: for a consumer that needs only a
	// few types of a busy topic.
	Skip
	// Fail treats it like a handler's error, which leaves time to deploy a newer
	// version of the program; the message is dead after MaxAttempts.
	Fail
)

// Options configures a Consumer. A zero field means the default after its colon.
type Options struct {
	// Name is the consumer's identity in the inbox; required. After a change of name
	// every message counts as new.
	Name string
	// Schema is the database schema of the inbox tables: see [inbox.Options].
	Schema string
	// Concurrency is the number of handlers that run at once: 8. Messages of one key are
	// handled one after the other.
	Concurrency int
	// Prefetch is the most messages in hand, waiting ones included:
	// four times Concurrency. A key whose handler hangs holds its waiting messages
	// for up to HandlerTimeout. If a key may have more messages at once than Prefetch,
	// raise it so that other keys continue meanwhile.
	Prefetch int
	// PrefetchBytes is the most bytes of these messages: 64 MiB. Sources count messages,
	// not bytes, so it is estimated from the size of earlier messages: large messages after
	// many small ones may exceed it once. A source has a bound of its own for the messages
	// that it holds, usually named MaxHeldBytes.
	PrefetchBytes int
	// Batch is the most messages in one transaction: 1. Their handlers
	// run one after the other. When one fails, all are rolled back and run
	// again, each in a transaction of its own. A message that was tried before is
	// never in a batch. If the source does not count deliveries, a transaction before that
	// of the batch records its messages: if one of them crashes the process, they are not
	// in a batch when they are delivered again.
	// More than 1 raises Prefetch to twice Concurrency batches.
	Batch int
	// HandlerTimeout ends the context of a handler, or of a batch of them: 30 s.
	HandlerTimeout time.Duration
	// Horizon is how long after its effect the source can deliver a message again; see
	// [inbox.Options].
	Horizon time.Duration
	// MaxAttempts is how often a message is tried before it is dead: 10. A try
	// that crashes the process counts. The next try then runs alone:
	// only a message that crashes the process alone is given up for it,
	// which takes one more try if MaxAttempts is 1.
	MaxAttempts int
	// BackoffMin is the delay after the first failure. Each further failure doubles it
	// up to BackoffMax; a random part of up to a half is subtracted: 1 s, 5 min.
	BackoffMin, BackoffMax time.Duration
	// Brake is the most dead letters in a row that this process
	// makes: 20; negative: no limit. After that, failing messages are given back and
	// tried again, at least every 10 s, until a handler's effect is committed. So a
	// service that is down for an hour, or a program without its handlers, costs a
	// handful of dead letters. Concurrent handlers may add some.
	Brake int
	// UnknownType is the policy for a message without a handler: Dead.
	UnknownType Policy
	// Order returns the order required of a key's messages in a topic; nil:
	// [inbox.AnyOrder]. With [inbox.Latest] a message whose version, or a later one,
	// was applied is acknowledged without its handler. With [inbox.Contiguous] each
	// version is applied once and in sequence; an early message is stashed in the
	// database until the versions before it have been applied, and a dead letter
	// blocks its key. In an ordered topic a message without key or version is dead.
	Order func(topic string) inbox.Order
	// Version returns the position of a message in its key; nil: its Version.
	Version func(m postrider.Message) int64
	// OnGap is called for a key whose messages have waited for missing versions
	// for more than a minute, and again each time the wait has doubled; nil: gaps are only
	// logged. admin.SendMissing asks the outbox for the missing messages.
	OnGap func(ctx context.Context, g inbox.Gap)
	// SkipGap gives up missing versions after this time: the key continues without
	// them, and they are stale if they arrive later. The time begins when a process has
	// received all that its source had for it, and again when the source was unreachable or
	// messages were given back for an outage. A version that is tried again, or is a dead
	// letter, is not missing. 0: the key waits for ever.
	SkipGap time.Duration
	// Opener decrypts a message for its handler; nil: none. Stored messages, such as dead
	// letters, stay encrypted.
	Opener Opener
	// Filter saves a transaction for most duplicates; nil: none.
	Filter Filter
	// FilterTimeout bounds its answer for all messages of one
	// Receive: 50 ms.
	FilterTimeout time.Duration
	// DrainTimeout is how long Run waits for running handlers when its context
	// has ended, before it ends theirs: 10 s.
	DrainTimeout time.Duration
	// Logger gets changes of state and failures, never a payload. nil: silent.
	Logger *slog.Logger
}

// Opener decrypts messages sealed by an [github.com/postrider/postrider/outbox.Sealer];
// a [seal.Box] is one. It must not change its argument. An
// error that matches [seal.ErrErased] acknowledges the message without its
// handler, because its key no longer exists. [seal.ErrTampered] makes it dead at once.
// [seal.ErrUnknownKey], [seal.ErrNotSealed] and [github.com/postrider/postrider/claim.ErrGone] count as failed
// attempts of the handler. Any other error means that the keys are unreachable: the message is
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

// A Consumer handles the messages of one source. Tx is the type of its handlers'
// transaction: *sql.Tx or pgx.Tx. Register handlers first, then call Run once.
type Consumer[Tx any] struct {
	source     broker.Source
	db         DB[Tx]
	inbox      *inboxwork.Inbox
	opts       Options
	owner      string // owner of the attempts begun here; new at every start
	handlers   map[string]Handler[Tx]
	middleware []func(next Handler[Tx]) Handler[Tx]
	wrapped    map[string]Handler[Tx] // handlers in their middleware, since Run
	database   trouble
	keys       trouble
	brake      brake
	level      level
	singles    singles
	excuses    excuses
	counts     counts
	marks      marks
	nudge      chan struct{} // holds a token when the stash may have something due
	err        error         // of registration, reported by Run
}

// New returns a Consumer of source with its inbox and its effects in db. It
// does no I/O. The inbox tables must exist when it runs: see [Consumer.Migrate].
func New[Tx any](source broker.Source, db DB[Tx], opts *Options) *Consumer[Tx] {
	o := opts.defaults()
	c := &Consumer[Tx]{source: source, db: db, opts: o, owner: rand.Text(), handlers: make(map[string]Handler[Tx]), nudge: make(chan struct{}, 1)}
	for slot := range o.Concurrency {
		c.marks.free = append(c.marks.free, slot)
	}
	c.inbox = inboxwork.New(db.Dialect(), o.Name, &inbox.Options{Schema: o.Schema, Horizon: o.Horizon})
	if o.Name == "" {
		c.err = errors.New("consumer: Options.Name is empty: it is the consumer's identity in the inbox")
	}
	return c
}

// Migrate creates missing inbox tables and upgrades older ones, in a
// transaction of its own: see [inbox.Inbox.Migrate]. While running consumers hold a
// table that must change, it retries for a minute. Programs that start
// together may all call it. If the tables exist, a role without the right to create
// tables may call it too.
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
// into an E. A payload that cannot be decoded makes the message dead at once.
//
// The type has one schema version, 1: a message without a version has it too, and a newer
// one is never decoded but fails with [schema.CodeNewer]. For a type with another version,
// or with several, see [HandleChain].
//
// fn's effects belong into tx, which the consumer commits. Messages that fn enqueues in
// tx with its ctx exist iff its other effects do, and name the message as their
// cause: see [outbox.CausedBy]. An error, a panic or
// the end of ctx rolls tx back, and the message is tried again later. The text
// of an error is written unchanged to the log and, its first 500 bytes, to the inbox
// tables: it should name the failure, not the message's contents. Of a panic only the
// type of its value is logged.
//
// When the transaction fails because of the database (no connection, a conflict
// with another transaction), fn runs again and no attempt is counted. To make that
// visible, fn must wrap the driver's errors with %w. A conflict that
// persists counts as an error of fn.
func Handle[Tx, E any](c *Consumer[Tx], typ string, fn func(ctx context.Context, tx Tx, e E) error) {
	c.HandleMessage(typ, func(ctx context.Context, tx Tx, m postrider.Message) error {
		var e E
		if m.Headers[seal.HeaderAlgorithm] != "" {
			return errSealed
		}
		if m.SchemaVersion > 1 {
			return &schema.VersionError{Version: m.SchemaVersion, First: 1, Last: 1}
		}
		if err := json.Unmarshal(m.Payload, &e); err != nil {
			return Permanent(fmt.Errorf("decode the payload as %T: %w", e, redact.JSON(err)))
		}
		return fn(ctx, tx, e)
	})
}

var (
	errSealed = errors.New("the message is sealed: set Options.Opener")
	errClaim  = errors.New("the payload stays in the database: set Options.Opener to a claim.Opener")
)

// HandleMessage registers fn for messages of typ, whole and undecoded; fn must
// not change the message. A message whose payload stays in the database (package claim)
// fails unless an [Opener] has fetched it. The rest is as for [Handle].
func (c *Consumer[Tx]) HandleMessage(typ string, fn func(ctx context.Context, tx Tx, m postrider.Message) error) {
	if _, twice := c.handlers[typ]; twice && c.err == nil {
		c.err = fmt.Errorf("consumer %q: two handlers for the type %q", c.opts.Name, typ)
	}
	c.handlers[typ] = c.timed(func(ctx context.Context, tx Tx, m postrider.Message) error {
		if m.Headers[envelope.DataRef] != "" && len(m.Payload) == 0 {
			return errClaim // the handler must not take the empty payload for the message's own
		}
		return fn(ctx, tx, m)
	})
}

// Permanent marks a handler's error that no further try can cure: the
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

// Run handles messages until ctx ends; then it lets running handlers finish
// within DrainTimeout, gives back the rest and returns nil. An error is
// the reason why the consumer cannot work.
func (c *Consumer[Tx]) Run(ctx context.Context) error {
	if c.err != nil {
		return c.err
	}
	c.wrap()
	r := newRun(c.source, c.opts, c.process)
	r.tend, r.batch, r.level = c.tendStash, c.processBatch, &c.level
	if c.opts.Filter != nil {
		r.known = (&screen[Tx]{c: c}).known
		r.atLeast = max(c.opts.Prefetch/4, 1) // one query for many messages, not one for each
	}
	if err := r.run(ctx); err != nil {
		return err // a handler still runs
	}
	c.endMarks(ctx)
	return nil
}
