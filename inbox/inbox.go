// Package inbox makes every message count once: it records the message's id in
// the transaction of its effect, so that a second delivery finds it there.
//
//	in := inbox.New(dialect.Postgres, "billing", nil)
//	...
//	err := in.Once(ctx, db, msg, func(tx *sql.Tx) error { return insertInvoice(ctx, tx, msg) })
//	// err == nil: acknowledge, whether fn ran now or long ago
//
// There is no query for whether a message is new: between such a query and the
// effect another delivery of the message could run.
//
// A message is identified by its id alone, not by its source: ids must be
// unique among all messages that one consumer name receives. Enqueue makes such
// ids (UUIDv7). If sources choose ids of their own, such as order numbers,
// give each source a consumer name of its own. Claims stay until [Inbox.Prune].
package inbox

import (
	"context"
	"database/sql"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/inboxsql"
	"github.com/postrider/postrider/outbox"
)

// Options configures an Inbox. nil means all defaults.
type Options struct {
	// Schema is the database schema of the inbox tables; "postrider" if empty. SQLite and
	// MySQL have no schemas; there a name means an attached database, or another one of the
	// server.
	Schema string
	// Horizon is how long after its effect a message can be delivered again;
	// [DefaultHorizon] if zero. Prune refuses to forget younger claims; see there.
	Horizon time.Duration
}

// An Inbox records which messages one consumer has processed. It holds no connection
// and is safe for concurrent use.
type Inbox struct {
	who     inboxsql.Identity // every method reports an invalid name
	horizon time.Duration
	lang    *inboxsql.Language
	sql     statements
}

// New returns the inbox of the named consumer. The name is the
// consumer's identity: under another name every message counts as new. It does
// no I/O; the first use reports an invalid name.
func New(d dialect.Dialect, consumer string, opts *Options) *Inbox {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Horizon <= 0 {
		o.Horizon = DefaultHorizon
	}
	l := inboxsql.For(d, o.Schema)
	return &Inbox{who: inboxsql.IdentityOf(d, consumer), horizon: max(o.Horizon, MinRetention), lang: l, sql: newStatements(l)}
}

// Consumer returns the name given to New.
func (in *Inbox) Consumer() string { return in.who.Consumer }

// ErrNoID reports a message without an id, which cannot be distinguished from its duplicate.
var ErrNoID = inboxsql.ErrNoID

// Claim records inside tx that the consumer processes m. It returns false if
// an earlier transaction has claimed m: then skip the effect and acknowledge.
// While another transaction that has claimed m is open, Claim waits for its end.
//
// After a [*RetryableError] run a new transaction. After any error, and after
// any error of the effect, roll back and do not acknowledge.
func (in *Inbox) Claim(ctx context.Context, tx outbox.Tx, m postrider.Message) (fresh bool, err error) {
	if err := in.who.Usable(m.ID); err != nil {
		return false, err
	}
	if err := outbox.CheckTx(tx); err != nil {
		return false, err
	}
	res, err := in.sql.claim.Exec(ctx, tx, in.who.Consumer, m.ID, inboxsql.Clean(m.Topic, postrider.MaxTopicLen), inboxsql.Clean(m.Type, postrider.MaxTypeLen))
	if in.lang.MySQL && inboxsql.MySQLNumber(err) == inboxsql.MySQLDuplicate {
		return false, nil
	}
	if err != nil {
		return false, in.wrap("claim", m.ID, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return false, in.wrap("claim", m.ID, err)
	}
	return n > 0, nil
}

func (in *Inbox) wrap(what, id string, err error) error {
	return Classify(in.who.Wrap(what, id, err))
}

// Beginner is *sql.DB or *sql.Conn.
type Beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// Once runs fn in a transaction of its own that claims m first, and commits. It
// returns nil without running fn if m was claimed before. fn must not commit.
// The message may be acknowledged only if Once returns nil.
func (in *Inbox) Once(ctx context.Context, db Beginner, m postrider.Message, fn func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return in.wrap("begin for", m.ID, err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing, and otherwise err is returned
	fresh, err := in.Claim(ctx, tx, m)
	if err != nil || !fresh {
		return err
	}
	if err := fn(tx); err != nil {
		return Classify(err)
	}
	if err := in.holds(ctx, SQL(tx), m.ID, 0); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return in.wrap("commit", m.ID, err)
	}
	return nil
}

// PgxBeginner is *pgxpool.Pool, *pgx.Conn or pgx.Tx. T is pgx.Tx, inferred.
type PgxBeginner[T any] interface {
	Begin(ctx context.Context) (T, error)
}

// OncePgx is [Inbox.Once] for pgx:
//
//	err := inbox.OncePgx(ctx, in, pool, msg, func(tx pgx.Tx) error { ... })
func OncePgx[T outbox.PgxTx[Tag], Tag outbox.CommandTag](ctx context.Context, in *Inbox, db PgxBeginner[T], m postrider.Message, fn func(tx T) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return in.wrap("begin for", m.ID, err)
	}
	defer inboxsql.Rollback(ctx, tx)
	fresh, err := in.Claim(ctx, outbox.Pgx[Tag](tx), m)
	if err != nil || !fresh {
		return err
	}
	if err := fn(tx); err != nil {
		return Classify(err)
	}
	if err := tx.Commit(ctx); err != nil {
		return in.wrap("commit", m.ID, err)
	}
	return nil
}
