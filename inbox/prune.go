package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/outbox"
)

// MinRetention is the least age that Prune accepts.
const MinRetention = 24 * time.Hour

// Prune forgets claims of the consumer that are older than olderThan by the
// database's clock, at most limit of them, the oldest first, and returns how
// many. Nothing else removes claims: a program that prunes calls it now and
// then, until it returns less than limit.
//
// A message that is delivered again after its claim was forgotten counts as
// new: it has a second effect. olderThan must therefore be longer than anything
// can bring a message back: the broker's retention (a group or a consumer that
// is made anew begins at the oldest message), that of the outbox (a person may
// send what is settled again), and the longest outage of the consumer. 30 days
// are a good beginning; less than [MinRetention] is refused. The claim of a dead
// letter stays as long as the letter.
//
// db is an *sql.DB, where each call is a short transaction of its own, or a
// transaction, which with pgx is outbox.Pgx(tx). Calls may run at the same time.
func (in *Inbox) Prune(ctx context.Context, db outbox.Execer, olderThan time.Duration, limit int) (removed int64, err error) {
	switch {
	case in.err != nil:
		return 0, in.err
	case olderThan < MinRetention:
		return 0, fmt.Errorf("inbox %q: prune what is older than %v: less than the least retention, %v", in.consumer, olderThan, MinRetention)
	case limit < 1:
		return 0, fmt.Errorf("inbox %q: prune at most %d claims: the limit must be positive", in.consumer, limit)
	}
	res, err := db.ExecContext(ctx, in.sql.prune, in.consumer, -olderThan.Microseconds(), limit)
	if err == nil {
		removed, err = res.RowsAffected()
	}
	if err != nil {
		return 0, Classify(fmt.Errorf("inbox %q: prune: %w", in.consumer, err))
	}
	return removed, nil
}
