package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/postrider/postrider"
)

// ErrNotDead says that a consumer has no dead letter of that id.
var ErrNotDead = errors.New("no such dead letter")

// Revive has a dead letter tried again, as if it had just come: a running
// consumer of the name takes it up within seconds. Commit tx.
func (in *Inbox) Revive(ctx context.Context, tx Conn, id string) error {
	if in.err != nil {
		return in.err
	}
	res, err := tx.ExecContext(ctx, in.sql.revive, in.consumer, id)
	if err != nil {
		return in.wrap("revive", id, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, in.notDead(id))
	}
	if err := in.dropDead(ctx, tx, id); err != nil {
		return err
	}
	return in.became(ctx, tx, id, Waiting)
}

// Discard removes a dead letter for ever. Its claim stays, so that it is dropped
// when it comes again. Where its key waits for its version, the version counts
// as applied, and the key goes on. Commit tx.
func (in *Inbox) Discard(ctx context.Context, tx Conn, id string) error {
	if in.err != nil {
		return in.err
	}
	m := postrider.Message{ID: id}
	if err := tx.QueryRow(ctx, in.sql.deadPlace, in.consumer, id).Scan(&m.Topic, &m.Key, &m.Version); err != nil {
		return in.wrap("look up dead letter", id, err)
	}
	if m.Topic == "" {
		return in.notDead(id)
	}
	if m.Key != "" && m.Version > 0 {
		if _, _, err := in.moveMark(ctx, tx, &m, m.Version-1); err != nil {
			return err
		}
	}
	if err := in.dropDead(ctx, tx, id); err != nil {
		return err
	}
	return in.became(ctx, tx, id, Discarded)
}

func (in *Inbox) notDead(id string) error {
	return fmt.Errorf("inbox %q: message %s: %w", in.consumer, id, ErrNotDead)
}

func (in *Inbox) dropDead(ctx context.Context, tx Conn, id string) error {
	res, err := tx.ExecContext(ctx, in.sql.dropDead, in.consumer, id)
	if err != nil {
		return in.wrap("remove dead letter", id, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 { // another person was faster
		return errors.Join(err, in.notDead(id))
	}
	return nil
}
