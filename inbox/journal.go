package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider"
)

// Act is what a person did to a consumer's tables, as its journal has it.
type Act struct {
	ID         int64     // rising; given by the database
	At         time.Time // by the database's clock
	Actor      string    // who, as they said
	Act        string    // what: "set mark", "discard" ...
	Topic, Key string
	MessageID  string // "": not about one message
	Was, Now   int64  // the version of a mark before and after; 0: not about a mark
	Reason     string
}

// ErrNoActor says that an act has nobody to answer for it.
var ErrNoActor = errors.New("an act needs an actor")

// WriteAct adds to the consumer's journal, in the transaction of the act. Actor
// must be there; ID and At are not looked at.
func (in *Inbox) WriteAct(ctx context.Context, tx Conn, a Act) error {
	switch {
	case in.err != nil:
		return in.err
	case strings.TrimSpace(a.Actor) == "":
		return fmt.Errorf("inbox %q: %s: %w", in.consumer, a.Act, ErrNoActor)
	}
	_, err := tx.ExecContext(ctx, in.sql.act, in.consumer, clean(a.Actor, 255), clean(a.Act, 255), clean(a.Topic, postrider.MaxTopicLen),
		clean(a.Key, postrider.MaxKeyLen), clean(a.MessageID, 255), a.Was, a.Now, clean(a.Reason, 1000))
	if err != nil {
		return Classify(fmt.Errorf("inbox %q: write the journal: %w", in.consumer, err))
	}
	return nil
}

// Acts lists the consumer's journal, the newest first, at most limit entries
// with ids below before; before 0 begins with the newest.
func (in *Inbox) Acts(ctx context.Context, db Querier, before int64, limit int) ([]Act, error) {
	if in.err != nil {
		return nil, in.err
	}
	if before == 0 {
		before = maxVersion
	}
	rows, err := db.QueryContext(ctx, in.sql.acts, in.consumer, before, limit)
	if err != nil {
		return nil, fmt.Errorf("inbox %q: read the journal: %w", in.consumer, err)
	}
	defer rows.Close()
	var out []Act
	for rows.Next() {
		var (
			a  Act
			at int64
		)
		if err := rows.Scan(&a.ID, &at, &a.Actor, &a.Act, &a.Topic, &a.Key, &a.MessageID, &a.Was, &a.Now, &a.Reason); err != nil {
			return nil, fmt.Errorf("inbox %q: read the journal: %w", in.consumer, err)
		}
		a.At = time.UnixMicro(at).UTC()
		out = append(out, a)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("inbox %q: read the journal: %w", in.consumer, err)
	}
	return out, nil
}
