package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/store"
)

// KeyOfConsumer names a key as one consumer sees it.
type KeyOfConsumer struct{ Consumer, Topic, Key string }

// MarkRequest moves a key's mark: versions up to Version count as applied.
type MarkRequest struct {
	KeyOfConsumer
	Version int64  // 0: as if no message of the key had ever come
	Actor   string // who asks, for the consumer's journal
	Reason  string // why; must not be empty
}

func (i Inboxes) of(consumer string) *inboxwork.Inbox {
	return inboxwork.New(i.Dialect, consumer, &inbox.Options{Schema: i.Schema})
}

// Migrate makes the inbox's tables, and on PostgreSQL its functions, or brings
// those of an older version to the newest.
func (i Inboxes) Migrate(ctx context.Context) error {
	return inboxwork.Migrate(ctx, func() error {
		return i.write(ctx, func(tx inbox.Conn) error { return i.of("migrate").Migrate(ctx, tx) })
	})
}

// MakeRoles makes the roles of an inbox on PostgreSQL which are not there, and sets
// what they may do: see [inbox.RolesSQL].
func (i Inboxes) MakeRoles(ctx context.Context, prefix string) error {
	if i.Dialect != dialect.Postgres {
		return errors.New("only PostgreSQL has roles")
	}
	text, err := inbox.RolesSQL(i.Schema, prefix)
	if err != nil {
		return err
	}
	err = i.write(ctx, func(tx inbox.Conn) error { _, err := tx.ExecContext(ctx, text); return err })
	var pg interface{ SQLState() string }
	if errors.As(err, &pg) && pg.SQLState() == "42501" && strings.Contains(err.Error(), "create role") {
		create := ""
		for _, name := range inbox.RoleNames(i.Schema, prefix) {
			create += ` CREATE ROLE "` + strings.ReplaceAll(name, `"`, `""`) + `" NOLOGIN;`
		}
		return &store.UnusableError{
			What: "make the roles of the inbox: " + err.Error(), Err: err,
			Fix: "let a role with CREATEROLE run, of these, what is not there:" + create + " Then migrate again",
		}
	}
	if err != nil {
		return fmt.Errorf("make the roles of the inbox: %w", err)
	}
	return nil
}

// Mark is the version of a key that was applied last, 0 when there is none.
func (i Inboxes) Mark(ctx context.Context, k KeyOfConsumer) (version int64, err error) {
	err = i.read(ctx, func(conn inbox.Conn) error {
		version, err = i.of(k.Consumer).Mark(ctx, conn, k.Topic, k.Key)
		return err
	})
	return version, err
}

// Marks lists the marks of after.Consumer behind its topic and key, at most
// limit; only, if it is not empty, is the one topic to list.
func (i Inboxes) Marks(ctx context.Context, after KeyOfConsumer, only string, limit int) ([]inbox.KeyMark, error) {
	return i.of(after.Consumer).Marks(ctx, i.DB, only, after.Topic, after.Key, limit)
}

// SetMark moves a mark, also back, with an entry in the journal, and returns where
// it was. A running consumer continues from there with its key's next message, or
// within seconds with what waits in the stash. Moved back, it does not bring
// messages back: their claims are still there.
func (i Inboxes) SetMark(ctx context.Context, r MarkRequest) (was int64, err error) {
	if strings.TrimSpace(r.Reason) == "" {
		return 0, errors.New("set a mark: the journal keeps why: give a reason")
	}
	act := "set mark"
	if r.Version == 0 {
		act = "reset mark"
	}
	err = i.write(ctx, func(tx inbox.Conn) error {
		in := i.of(r.Consumer)
		if was, err = in.SetMark(ctx, tx, r.Topic, r.Key, r.Version); err != nil {
			return err
		}
		return in.WriteAct(ctx, tx, inbox.Act{Actor: r.Actor, Act: act, Topic: r.Topic, Key: r.Key, Was: was, Now: r.Version, Reason: r.Reason})
	})
	return was, err
}

// Decide does to a dead letter of a consumer what a person has decided, with an entry
// in the journal: [store.ActRetry] has a running consumer take it up within seconds,
// [store.ActDiscard] removes it. The error matches [inbox.ErrNotDead] when the
// consumer has no such dead letter, and is a [*CommitError] when nobody knows.
func (i Inboxes) Decide(ctx context.Context, consumer string, kind store.ActKind, letter *inbox.DeadLetter, actor, reason string) error {
	in := i.of(consumer)
	do := in.Revive
	switch kind {
	case store.ActRetry:
	case store.ActDiscard:
		do = in.Discard
	default:
		return fmt.Errorf("decide about a dead letter of a consumer: unknown act %q: use %s or %s", kind, store.ActRetry, store.ActDiscard)
	}
	m := &letter.Message
	return i.write(ctx, func(tx inbox.Conn) error {
		if err := do(ctx, tx, m.ID); err != nil {
			return err
		}
		return in.WriteAct(ctx, tx, inbox.Act{Actor: actor, Act: string(kind), Topic: m.Topic, Key: m.Key, MessageID: m.ID, Reason: reason})
	})
}

// Acts lists what people did to a consumer, the newest first, at most limit, with
// ids below before; before 0 begins with the newest.
func (i Inboxes) Acts(ctx context.Context, consumer string, before int64, limit int) ([]inbox.Act, error) {
	return i.of(consumer).Acts(ctx, i.DB, before, limit)
}

// Prune forgets the claims of a consumer that are older than olderThan, in small
// batches, and returns how many. An age below the horizon, for which the
// consumer's source can bring a message back (0: [inbox.DefaultHorizon]), is
// refused with an [*inbox.RetentionError]. Marks are never forgotten.
func (i Inboxes) Prune(ctx context.Context, consumer string, olderThan, horizon time.Duration) (int64, error) {
	in := inbox.New(i.Dialect, consumer, &inbox.Options{Schema: i.Schema, Horizon: horizon})
	return in.PruneAll(ctx, i.DB, olderThan)
}

// write runs fn in a transaction and commits.
func (i Inboxes) write(ctx context.Context, fn func(inbox.Conn) error) error {
	tx, err := i.DB.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing to say after a commit, and less than err before
	if err := fn(inbox.SQL(tx)); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return &CommitError{err}
	}
	return nil
}

// CommitError says that a commit failed: where the connection was lost, the act may
// be done all the same.
type CommitError struct{ Err error }

func (e *CommitError) Error() string { return "commit: " + e.Err.Error() }

func (e *CommitError) Unwrap() error { return e.Err }
