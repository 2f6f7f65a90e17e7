package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/outbox"
)

// MinRetention is the least horizon that an inbox can have, and so the least age
// that Prune accepts.
const MinRetention = 24 * time.Hour

// DefaultHorizon is the horizon of an inbox whose [Options] set none: the default
// retention of an outbox and of a Kafka topic. Choose the longest of the retention of
// the topic or stream (NATS and Redis streams keep all messages by default), the
// retention of the outbox if its messages are replayed, the time for which a RabbitMQ
// queue may hold a message, and the time for which callers of an HTTP operation repeat a
// request.
const DefaultHorizon = 7 * 24 * time.Hour

// RetentionError rejects an age at which claims would be forgotten while their
// messages can still be delivered again, for a second effect.
type RetentionError struct {
	Consumer           string
	OlderThan, Horizon time.Duration
}

// Error names both ages and what to change.
func (e *RetentionError) Error() string {
	return fmt.Sprintf("inbox %q: prune claims older than %v: messages can be delivered again for %v, and would have a second effect; keep claims longer, or shorten the retention of their sources and then the inbox's horizon",
		e.Consumer, e.OlderThan, e.Horizon)
}

// Prune forgets claims of the consumer that are older than olderThan by the
// database's clock, at most limit of them, the oldest first, and returns their
// number. Nothing else removes claims: call it regularly,
// each time until it returns less than limit.
//
// A message that is delivered again after its claim was forgotten counts as
// new: it has a second effect, unless an order guards its key, whose mark is
// never forgotten. olderThan must therefore not be below the inbox's horizon
// ([Options]): otherwise the error is a [*RetentionError]. The horizon is a minimum:
// a consumer that was down for a month receives messages that are a month old. Begin
// with 30 days. The claim of a dead letter stays as long as the letter, the claim of
// a stashed message as long as it waits.
//
// db is an *sql.DB, where each call is a short transaction of its own, or a
// transaction, which with pgx is Pgx(tx). Calls may run at the same time.
func (in *Inbox) Prune(ctx context.Context, db outbox.Execer, olderThan time.Duration, limit int) (removed int64, err error) {
	switch {
	case in.who.Err != nil:
		return 0, in.who.Err
	case olderThan < in.horizon:
		return 0, &RetentionError{in.who.Consumer, olderThan, in.horizon}
	case limit < 1:
		return 0, fmt.Errorf("inbox %q: prune at most %d claims: the limit must be positive", in.who.Consumer, limit)
	}
	res, err := in.sql.prune.Exec(ctx, db, in.who.Consumer, -olderThan.Microseconds(), limit)
	if err == nil {
		removed, err = res.RowsAffected()
	}
	if err != nil {
		return 0, Classify(fmt.Errorf("inbox %q: prune: %w", in.who.Consumer, err))
	}
	return removed, nil
}

// PruneAll calls Prune with batches of 1,000 until no old claim is left or
// ctx has ended, and returns the number of forgotten claims. Between two batches
// it pauses as long as a batch took, at least 5 ms, so that consumers are not delayed.
func (in *Inbox) PruneAll(ctx context.Context, db outbox.Execer, olderThan time.Duration) (removed int64, err error) {
	const batch = 1000
	for {
		begin := time.Now()
		n, err := in.Prune(ctx, db, olderThan, batch)
		removed += n
		if err != nil || n < batch {
			return removed, err
		}
		select {
		case <-ctx.Done():
			return removed, ctx.Err()
		case <-time.After(max(time.Since(begin), 5*time.Millisecond)):
		}
	}
}
