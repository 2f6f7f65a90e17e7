package consumer

import (
	"context"
	"fmt"

	"github.com/postrider/postrider"
)

// A Handler applies the effect of one message inside tx; see [Handle].
type Handler[Tx any] func(ctx context.Context, tx Tx, m postrider.Message) error

// Use wraps the handlers of all types in mw, the first one outermost, and
// inside the middleware of earlier calls. Call it before Run.
//
// A middleware runs as often as its handler, inside its transaction, its
// time limit and the guard against panics. So it sees the error of each try, but
// not the message's final outcome. It may change the context, pass on a changed copy of
// the message (the message itself must not be changed), add
// effects of its own to tx, refuse with an error, and return nil without calling
// next: then the message counts as handled. It must not call next twice, commit,
// or use tx after it has returned. Messages without an effect of their own do not
// reach it: duplicates, stale, early and erased messages, and those of a type
// without a handler.
func (c *Consumer[Tx]) Use(mw ...func(next Handler[Tx]) Handler[Tx]) {
	for _, m := range mw {
		if m == nil && c.err == nil {
			c.err = fmt.Errorf("consumer %q: a middleware is nil", c.opts.Name)
		}
	}
	c.middleware = append(c.middleware, mw...)
}

// wrap puts the middleware around the handlers.
func (c *Consumer[Tx]) wrap() {
	c.wrapped = make(map[string]Handler[Tx], len(c.handlers))
	for typ, h := range c.handlers {
		for i := len(c.middleware) - 1; i >= 0; i-- {
			h = c.middleware[i](h)
		}
		c.wrapped[typ] = h
	}
}

// Try describes a call of a handler.
type Try struct {
	Consumer string // Options.Name
	Source   string // "kafka", "nats" ...; see [github.com/postrider/postrider/broker.SourceInfo]
	Origin   string // the message's position: "orders/3@1041"
	// Attempt is 1 for the first try, as far as known: tries in a batch, and tries of
	// stashed messages, are not counted.
	Attempt int
	// Batch is the most messages that share the transaction.
	Batch int
}

// TryOf returns the Try of a handler's or a middleware's context; ok is false for any
// other context.
func TryOf(ctx context.Context) (t Try, ok bool) {
	t, ok = ctx.Value(tryKey{}).(Try)
	return t, ok
}

type tryKey struct{}

// tell puts the Try of t into ctx.
func (c *Consumer[Tx]) tell(ctx context.Context, t *task, batch int) context.Context {
	return context.WithValue(ctx, tryKey{}, Try{
		Consumer: c.opts.Name, Source: c.source.Info().Name, Origin: t.d.Origin, Attempt: max(t.count, t.d.Attempt, 1), Batch: batch,
	})
}
