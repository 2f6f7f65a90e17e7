// Package outbox writes messages into your own database transaction.
//
//	ob := outbox.New(dialect.Postgres, nil)
//	...
//	err = ob.Enqueue(ctx, tx, postrider.JSON("orders.placed", id, "order.placed", order))
//
// The message is one row of the outbox table. It exists iff your transaction
// commits; a relay delivers it afterwards. The package opens no connection,
// starts no goroutine and keeps none of its arguments.
package outbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/uuidv7"
	"github.com/postrider/postrider/schema"
)

// Options are the settings of an Outbox. nil means all defaults.
type Options struct {
	// Schema holds the outbox table: "postrider". SQLite and MySQL have no schemas; there
	// a name means an attached or another database.
	Schema string
	// Table is the outbox table: "outbox" on PostgreSQL, "postrider_outbox" on SQLite and MySQL.
	Table string
	// Limits are stricter limits than those of package postrider.
	Limits Limits
	// LockKeys is for PostgreSQL with strict topics: an Enqueue of several
	// messages first locks their keys, in the same order in every transaction,
	// so that two such calls cannot deadlock. It costs one statement per call,
	// and the writer needs EXECUTE on the function lock_keys of the schema.
	LockKeys bool
	// Validator refuses a payload that breaks its schema, before the Sealer makes it
	// unreadable; nil: nothing. It must do no I/O: the caller's transaction is open. A
	// [github.com/postrider/postrider/schema.Set] is one.
	Validator schema.Checker
	// Sealer encrypts every message before it is checked and written; nil: none.
	// A [github.com/postrider/postrider/seal.Box] is one.
	Sealer Sealer
	// Door refuses what could be written and not be sent; nil: nothing. It sees
	// messages as they are written, sealed. A
	// [github.com/postrider/postrider/route.Door] is one.
	Door Door
	// Tracer makes a span of every message and its context the message's own, so
	// that it travels through the row; nil: none. See module otelpostrider.
	Tracer Tracer
}

// Door checks a message before it is written. It must not change or keep it and
// is called from many goroutines. Its error is best a *[postrider.LimitError].
type Door interface {
	Check(m *postrider.Message) error
}

// Sealer makes a message unreadable for all but its consumers. It is called with
// the message's final id, must not change its argument and must keep id, topic
// and key.
type Sealer interface {
	Seal(ctx context.Context, m postrider.Message) (postrider.Message, error)
}

// Limits bound what one message may carry, in bytes. Zero means the limit of
// package postrider, which is also the most that counts.
type Limits struct {
	Payload     int // [postrider.MaxPayload]
	HeaderBytes int // [postrider.MaxHeaderBytes]
}

// An Outbox turns messages into rows. It holds no connection and is safe for
// concurrent use; a package variable is a good place for one.
type Outbox struct {
	writer writer
	limits Limits
	valid  schema.Checker
	sealer Sealer
	door   Door
	tracer Tracer
	ids    uuidv7.Generator
}

// New returns an Outbox that writes in the dialect d. It does no I/O.
func New(d dialect.Dialect, opts *Options) *Outbox {
	var o Options
	if opts != nil {
		o = *opts
	}
	return &Outbox{writer: newWriter(d, o), limits: o.Limits, valid: o.Validator, sealer: o.Sealer, door: o.Door, tracer: o.Tracer}
}

// Enqueue writes msgs into the outbox, in this order, inside tx. It does not
// change msgs. Without messages it does nothing. Under a context of [CausedBy],
// such as a handler's, they say what they follow from.
//
// A message that breaks a limit or its schema, or cannot be sealed, gives a [*MessageError], and
// a tx that is no transaction a [*NotTxError], both before anything is written.
// After any other error the caller must roll back, as after any failed statement.
func (o *Outbox) Enqueue(ctx context.Context, tx Tx, msgs ...postrider.Message) error {
	_, err := o.EnqueueIDs(ctx, tx, msgs...)
	return err
}

// EnqueueIDs is Enqueue and returns the id of each message: the one it came
// with, in lower case, or the UUIDv7 made for it.
func (o *Outbox) EnqueueIDs(ctx context.Context, tx Tx, msgs ...postrider.Message) ([]string, error) {
	if err := CheckTx(tx); err != nil {
		return nil, err
	}
	if len(msgs) == 0 {
		return nil, nil
	}
	for i := range msgs {
		err := o.check(&msgs[i])
		if err == nil && o.valid != nil {
			err = o.valid.Check(&msgs[i])
		}
		if err != nil {
			return nil, &MessageError{Index: i, Topic: msgs[i].Topic, Err: err}
		}
	}
	ids := make([]string, len(msgs))
	for i := range msgs {
		if ids[i] = strings.ToLower(msgs[i].ID); ids[i] == "" {
			ids[i] = o.ids.New()
		}
	}
	msgs, end := o.trace(ctx, ids, msgs)
	err := o.put(ctx, tx, ids, o.carry(ctx, msgs))
	end(err)
	if err != nil {
		return nil, err
	}
	return ids, nil
}

// put writes msgs when nothing forbids it.
func (o *Outbox) put(ctx context.Context, tx Tx, ids []string, msgs []postrider.Message) error {
	if o.sealer != nil {
		sealed, err := o.seal(ctx, ids, msgs)
		if err != nil {
			return err
		}
		msgs = sealed
	}
	if o.door != nil {
		for i := range msgs {
			if err := o.door.Check(&msgs[i]); err != nil {
				return &MessageError{Index: i, Topic: msgs[i].Topic, Err: err}
			}
		}
	}
	if err := o.writer.write(ctx, tx, ids, msgs); err != nil {
		return fmt.Errorf("outbox: enqueue %s: %w", describe(msgs), err)
	}
	return nil
}

// seal returns msgs as they are to be written. The limits hold for these too.
func (o *Outbox) seal(ctx context.Context, ids []string, msgs []postrider.Message) ([]postrider.Message, error) {
	sealed := make([]postrider.Message, len(msgs))
	for i, m := range msgs {
		var err error
		m.ID = ids[i]
		if sealed[i], err = o.sealer.Seal(ctx, m); err == nil {
			err = o.check(&sealed[i])
		}
		if err != nil {
			return nil, &MessageError{Index: i, Topic: msgs[i].Topic, Err: err}
		}
	}
	return sealed, nil
}

func (o *Outbox) check(m *postrider.Message) error {
	if err := m.Validate(); err != nil {
		return err
	}
	if limit := o.limits.Payload; limit > 0 && len(m.Payload) > limit {
		return &postrider.LimitError{Field: "payload", Reason: fmt.Sprintf("is %d bytes, the limit is %d", len(m.Payload), limit)}
	}
	if limit := o.limits.HeaderBytes; limit > 0 {
		size := 0
		for name, value := range m.Headers {
			size += len(name) + len(value)
		}
		if size > limit {
			return &postrider.LimitError{Field: "headers", Reason: fmt.Sprintf("are %d bytes, the limit is %d", size, limit)}
		}
	}
	if y := m.NotBefore.UTC().Year(); y < 1 || y > 9999 {
		return &postrider.LimitError{Field: "not before", Reason: fmt.Sprintf("is in the year %d, which no database keeps", y)}
	}
	return nil
}

func describe(msgs []postrider.Message) string {
	if len(msgs) == 1 {
		return fmt.Sprintf("1 message (topic %q)", msgs[0].Topic)
	}
	return fmt.Sprintf("%d messages (first topic %q)", len(msgs), msgs[0].Topic)
}

// MessageError says which message of an Enqueue cannot be written and why. It
// wraps a [*postrider.LimitError], the error of an encoder or a [*schema.InvalidError],
// which match [postrider.ErrInvalid], or that of the Sealer. Nothing has been written.
type MessageError struct {
	Index int    // of the message in the call, from 0
	Topic string // of the message
	Err   error
}

// Error names the message by its place in the call, never by its payload.
func (e *MessageError) Error() string {
	return fmt.Sprintf("outbox: message %d (topic %q): %v", e.Index, shorten(e.Topic), e.Err)
}

// Unwrap returns what is wrong with the message.
func (e *MessageError) Unwrap() error { return e.Err }

// shorten keeps an over-long topic, which is what the error may be about, from
// filling a log line.
func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// due is NotBefore in microseconds since 1970, rounded up: never early.
func due(t time.Time) int64 {
	us := t.UnixMicro()
	if t.Nanosecond()%1000 != 0 {
		us++
	}
	return us
}
