// Package letters reads and decides the dead letters of one consumer.
package letters

import (
	"context"
	"errors"
	"fmt"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/store"
)

// Box holds the dead letters of one consumer.
type Box struct {
	*open.Consumers
	in *inbox.Inbox
}

// Open opens the database of the consumer, which need not hold an outbox.
func Open(set *open.Settings, consumer string) (*Box, error) {
	i, err := open.Inboxes(set)
	if err != nil {
		return nil, err
	}
	return &Box{i, inbox.New(i.Dialect, consumer, &inbox.Options{Schema: i.Schema})}, nil
}

// Page answers with a page of dead letters, and says what is missing when
// the tables are.
func (m *Box) Page(ctx context.Context, after string, limit int) ([]inbox.DeadLetter, error) {
	letters, err := m.in.DeadLetters(ctx, m.DB, after, limit)
	if err != nil {
		return nil, fmt.Errorf("%w; if its tables are missing, the consumer creates them with Inbox.Migrate", err)
	}
	return letters, nil
}

// Each calls fn for the dead letters that match.
func (m *Box) Each(ctx context.Context, match func(*inbox.DeadLetter) bool, fn func(*inbox.DeadLetter) error) error {
	const page = 200
	for after := ""; ; {
		letters, err := m.Page(ctx, after, page)
		if err != nil {
			return err
		}
		for i := range letters {
			after = letters[i].Message.ID
			if !match(&letters[i]) {
				continue
			}
			if err := fn(&letters[i]); err != nil {
				return err
			}
		}
		if len(letters) < page {
			return nil
		}
	}
}

// Act retries or discards one dead letter, with an entry in the consumer's journal, and
// returns what became of it.
func (m *Box) Act(ctx context.Context, kind store.ActKind, l *inbox.DeadLetter, actor, reason string) (string, error) {
	err := m.Decide(ctx, m.in.Consumer(), kind, l, actor, reason)
	var commit *admin.CommitError
	switch {
	case err == nil:
		return "done", nil
	case errors.Is(err, inbox.ErrNotDead): // somebody else was faster
		return "not found", nil
	case errors.As(err, &commit):
		return "unknown", fmt.Errorf("message %s: %w", l.Message.ID, err)
	}
	return "failed", err
}
