package consumer

import (
	"context"
	"fmt"

	"github.com/postrider/postrider"
)

// A Handler has the effect of one message inside tx; see [Handle].
type Handler[Tx any] func(ctx context.Context, tx Tx, m postrider.Message) error

// Use wraps the handlers of all types in mw, the first of it outermost, and
// behind that of earlier calls. Call it before Run.
//
// A middleware runs as often as its handler does, inside its transaction, its
// time limit and the guard against panics, so it sees the error of each try and
// not what becomes of the message. It may change the context, hand on another
// message than it got (a copy: the message itself must not be changed), add
// effects of its own to tx, refuse with an error, and return nil without calling
// next: then the message counts as handled. It must not call next twice, commit,
// or use tx after it has returned. Not passed by are messages without an effect
// of their own: duplicates, stale, early and erased ones, and those of a type
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

// Try says how a message came to its handler.
type Try struct {
	Consumer string // Options.Name
	Source   string // "kafka", "nats" ...; see [github.com/postrider/postrider/broker.SourceInfo]
	Origin   string // where the message stood: "orders/3@1041"
	// Attempt is 1 for the first try, as far as is known: tries of a batch, and of
	// what waited in the database, are not counted.
	Attempt int
	// Batch is how many messages share the transaction at most.
	Batch int
}

// TryOf tells a handler or a middleware about its call; ok is false for a context
// that is not that of a handler.
func TryOf(ctx context.Context) (t Try, ok bool) {
	t, ok = ctx.Value(tryKey{}).(Try)
	return t, ok
}

type tryKey struct{}

// tell puts into ctx how t came here.
func (c *Consumer[Tx]) tell(ctx context.Context, t *task, batch int) context.Context {
	return context.WithValue(ctx, tryKey{}, Try{
		Consumer: c.opts.Name, Source: c.source.Info().Name, Origin: t.d.Origin, Attempt: max(t.count, t.d.Attempt, 1), Batch: batch,
	})
}
