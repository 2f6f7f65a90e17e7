package inboxwork

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
)

// ErrNoActor is matched when an act names no actor.
var ErrNoActor = errors.New("an act needs an actor")

// WriteAct adds to the consumer's journal, in the transaction of the act. Actor
// must be there; ID and At are not looked at.
func (in *Inbox) WriteAct(ctx context.Context, tx inbox.Conn, a inbox.Act) error {
	switch {
	case in.who.Err != nil:
		return in.who.Err
	case strings.TrimSpace(a.Actor) == "":
		return fmt.Errorf("inbox %q: %s: %w", in.who.Consumer, a.Act, ErrNoActor)
	}
	_, err := in.sql.act.Exec(ctx, tx, in.who.Consumer, inboxsql.Clean(a.Actor, 255), inboxsql.Clean(a.Act, 255), inboxsql.Clean(a.Topic, postrider.MaxTopicLen),
		inboxsql.Clean(a.Key, postrider.MaxKeyLen), inboxsql.Clean(a.MessageID, 255), a.Was, a.Now, inboxsql.Clean(a.Reason, 1000))
	if err != nil {
		return inbox.Classify(fmt.Errorf("inbox %q: write the journal: %w", in.who.Consumer, err))
	}
	return nil
}

// Acts lists the consumer's journal, the newest first, at most limit entries
// with ids below before; before 0 begins with the newest.
func (in *Inbox) Acts(ctx context.Context, db inbox.Querier, before int64, limit int) ([]inbox.Act, error) {
	if in.who.Err != nil {
		return nil, in.who.Err
	}
	if before == 0 {
		before = maxVersion
	}
	rows, err := in.sql.acts.Query(ctx, db, in.who.Consumer, before, limit)
	if err != nil {
		return nil, fmt.Errorf("inbox %q: read the journal: %w", in.who.Consumer, err)
	}
	defer rows.Close()
	var out []inbox.Act
	for rows.Next() {
		var (
			a  inbox.Act
			at int64
		)
		if err := rows.Scan(&a.ID, &at, &a.Actor, &a.Act, &a.Topic, &a.Key, &a.MessageID, &a.Was, &a.Now, &a.Reason); err != nil {
			return nil, fmt.Errorf("inbox %q: read the journal: %w", in.who.Consumer, err)
		}
		a.At = time.UnixMicro(at).UTC()
		out = append(out, a)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("inbox %q: read the journal: %w", in.who.Consumer, err)
	}
	return out, nil
}
