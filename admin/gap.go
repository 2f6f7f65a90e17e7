package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// SendMissing returns a function for a consumer's Options.OnGap, if the consumer can
// reach the outbox of its messages: it orders a replay of a key's missing
// versions, and logs the result. office is that of the pipe that feeds the consumer.
// If the gap stays, the function is called again and orders again; the consumer's
// inbox drops duplicates. Every order reads the outbox once, and is in
// its journal under actor. SendMissing returns an [*ops.MissingError]
// if the store has no orders.
func SendMissing(office *ops.Office, actor string, log *slog.Logger) (func(ctx context.Context, g inbox.Gap), error) {
	if err := office.Need(ops.CanOrder); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return func(ctx context.Context, g inbox.Gap) {
		log := log.With("topic", g.Topic, "key", g.Key, "from", g.Mark+1, "to", g.Needs)
		id, plan, err := office.Orders.Order(ctx, ops.Order{
			Kind: store.ActReplay, Actor: actor, Reason: fmt.Sprintf("a consumer misses versions %d to %d", g.Mark+1, g.Needs),
			Match: ops.Match{Topic: g.Topic, Key: g.Key, Versions: ops.Versions{First: g.Mark + 1, Last: g.Needs}},
		})
		switch {
		case errors.Is(err, store.ErrNotFound):
			log.ErrorContext(ctx, "missing versions not found in the outbox")
		case err != nil:
			log.ErrorContext(ctx, "replay request failed", "error", err)
		default:
			log.WarnContext(ctx, "missing versions requested", "order", id, "messages", plan.Records)
		}
	}, nil
}
