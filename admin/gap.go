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

// SendMissing returns what a consumer's Options.OnGap may be, where the consumer can
// reach the outbox its messages come from: it orders a replay of the versions that a
// key waits for, and logs what became of that. office is that of the pipe that feeds the consumer.
// A consumer that is told again, because the gap has stayed, orders again: what
// comes twice is dropped by its inbox. Every order reads the outbox once, and is in
// its journal under actor. It returns an [*ops.MissingError]
// where the store has no orders.
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
