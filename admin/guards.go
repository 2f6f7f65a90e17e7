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

// KeyOfConsumer identifies a key of one consumer.
type KeyOfConsumer struct{ Consumer, Topic, Key string }

// MarkRequest moves a key's mark: versions up to Version count as applied.
type MarkRequest struct {
	KeyOfConsumer
	Version int64  // 0: as if no message of the key had ever been applied
	Actor   string // the person's name, for the consumer's journal
	Reason  string // for the journal; must not be empty
}

func (i Inboxes) of(consumer string) *inboxwork.Inbox {
	return inboxwork.New(i.Dialect, consumer, &inbox.Options{Schema: i.Schema})
}

// Migrate creates the inbox's tables, and on PostgreSQL its functions, or upgrades
// older ones.
func (i Inboxes) Migrate(ctx context.Context) error {
	return inboxwork.Migrate(ctx, func() error {
		return i.write(ctx, func(tx inbox.Conn) error { return i.of("migrate").Migrate(ctx, tx) })
	})
}

// MakeRoles makes the roles of an inbox which are not there, and sets what they may do: see
// [inbox.RolesSQL] and [inbox.MySQLRoles].
func (i Inboxes) MakeRoles(ctx context.Context, prefix string) error {
	switch i.Dialect {
	case dialect.Postgres:
	case dialect.MySQL:
		return i.makeMySQLRoles(ctx, prefix)
	default:
		return errors.New("only PostgreSQL, MySQL and MariaDB have roles")
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

func (i Inboxes) makeMySQLRoles(ctx context.Context, prefix string) error {
	all, err := inbox.MySQLRoles(prefix)
	if err != nil {
		return err
	}
	for _, one := range all {
		if err := i.write(ctx, func(tx inbox.Conn) error { _, err := tx.ExecContext(ctx, one); return err }); err != nil {
			return fmt.Errorf("make the roles of the inbox: %w; if the user may not make roles or grant, let an administrator run what `postrider migrate inbox --roles --print-sql` prints", err)
		}
	}
	return nil
}

// Mark returns the last applied version of a key, 0 before the first.
func (i Inboxes) Mark(ctx context.Context, k KeyOfConsumer) (version int64, err error) {
	err = i.read(ctx, func(conn inbox.Conn) error {
		version, err = i.of(k.Consumer).Mark(ctx, conn, k.Topic, k.Key)
		return err
	})
	return version, err
}

// Marks returns at most limit marks of after.Consumer, beginning after its topic and key;
// only, if not empty, restricts them to one topic.
func (i Inboxes) Marks(ctx context.Context, after KeyOfConsumer, only string, limit int) ([]inbox.KeyMark, error) {
	return i.of(after.Consumer).Marks(ctx, i.DB, only, after.Topic, after.Key, limit)
}

// SetMark moves a mark, forward or back, with an entry in the journal, and returns its
// old value. A running consumer continues from there with its key's next message, or
// within seconds with stashed messages. A mark that is moved back does not bring
// messages back: their claims still exist.
func (i Inboxes) SetMark(ctx context.Context, r MarkRequest) (was int64, err error) {
	if strings.TrimSpace(r.Reason) == "" {
		return 0, errors.New("set a mark: missing reason: give one for the journal")
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

// Decide carries out a person's decision about a dead letter of a consumer, with an entry
// in the journal: after [store.ActRetry] a running consumer handles it within seconds,
// [store.ActDiscard] removes it. The error matches [inbox.ErrNotDead] if the
// consumer does not have the dead letter, and is a [*CommitError] if the outcome is unknown.
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

// Acts returns at most limit entries of a consumer's journal, the newest first, with
// ids below before; before 0 begins with the newest.
func (i Inboxes) Acts(ctx context.Context, consumer string, before int64, limit int) ([]inbox.Act, error) {
	return i.of(consumer).Acts(ctx, i.DB, before, limit)
}

// Unfinished returns the messages that a consumer has tried or stashed and not finished, in
// the order of their ids, beginning after the id after ("" for the first page).
func (i Inboxes) Unfinished(ctx context.Context, consumer, after string, limit int) ([]inbox.Unfinished, error) {
	return i.of(consumer).Unfinished(ctx, i.DB, after, limit)
}

// Message returns the records about one message of a consumer. For an unknown message
// it returns the zero value.
func (i Inboxes) Message(ctx context.Context, consumer, id string) (k inboxwork.Known, err error) {
	err = i.read(ctx, func(conn inbox.Conn) error {
		k, err = i.of(consumer).Look(ctx, conn, id)
		return err
	})
	return k, err
}

// ForgetRequest requests a consumer to forget claims.
type ForgetRequest struct {
	Consumer  string
	OlderThan time.Duration
	// Horizon is how long the consumer's source can deliver a message again; 0:
	// [inbox.DefaultHorizon].
	Horizon       time.Duration
	Actor, Reason string // for the journal; Actor must not be empty
}

// Prune forgets the claims of a consumer that are older than the requested age, in
// small batches, and returns their number. An age below the horizon is refused with an
// [*inbox.RetentionError]. Marks are never forgotten. The consumer's journal gets one
// entry if any claim was removed, even if an error followed.
func (i Inboxes) Prune(ctx context.Context, r ForgetRequest) (removed int64, err error) {
	if strings.TrimSpace(r.Actor) == "" {
		return 0, fmt.Errorf("inbox %q: prune: %w", r.Consumer, inboxwork.ErrNoActor)
	}
	in := inbox.New(i.Dialect, r.Consumer, &inbox.Options{Schema: i.Schema, Horizon: r.Horizon})
	if removed, err = in.PruneAll(ctx, i.DB, r.OlderThan); removed == 0 {
		return 0, err
	}
	act := inbox.Act{Actor: r.Actor, Act: "prune", Reason: fmt.Sprintf("%d claims older than %s", removed, r.OlderThan)}
	if r.Reason != "" {
		act.Reason = r.Reason + ": " + act.Reason
	}
	ctx = context.WithoutCancel(ctx)
	noted := i.write(ctx, func(tx inbox.Conn) error { return i.of(r.Consumer).WriteAct(ctx, tx, act) })
	return removed, errors.Join(err, noted)
}

// write runs fn in a transaction and commits.
func (i Inboxes) write(ctx context.Context, fn func(inbox.Conn) error) error {
	tx, err := i.DB.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing, and otherwise err is returned
	if err := fn(inbox.SQL(tx)); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return &CommitError{err}
	}
	return nil
}

// CommitError reports a failed commit. If the connection was lost, the act may
// have been committed nevertheless.
type CommitError struct{ Err error }

func (e *CommitError) Error() string { return "commit: " + e.Err.Error() }

func (e *CommitError) Unwrap() error { return e.Err }
