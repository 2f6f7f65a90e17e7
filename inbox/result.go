package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/inboxsql"
	"github.com/postrider/postrider/outbox"
)

// MaxResult is the largest result that can be stored, in bytes.
const MaxResult = 1 << 20

// ErrNoResult means that no result is stored with a claim: the message was
// processed without one.
var ErrNoResult = errors.New("no result is kept")

// TryClaim is [Inbox.Claim] without waiting: busy means that another transaction
// that called TryClaim for m is open. On SQLite it is Claim, because a second
// writer waits at the beginning of its transaction. On MySQL two concurrent calls may wait
// too.
func (in *Inbox) TryClaim(ctx context.Context, tx Conn, m postrider.Message) (fresh, busy bool, err error) {
	if err := in.who.Usable(m.ID); err != nil {
		return false, false, err
	}
	if err := outbox.CheckTx(tx); err != nil {
		return false, false, err
	}
	if !in.sql.free.None() {
		if free, busy, err := in.isFree(ctx, tx, &m); err != nil || !free {
			return false, busy, err
		}
	}
	if in.sql.tryClaim.None() {
		fresh, err = in.Claim(ctx, tx, m)
		return fresh, false, err
	}
	var fate int
	row := inboxsql.QueryRow(ctx, tx, in.sql.tryClaim, in.who.Consumer, m.ID, inboxsql.Clean(m.Topic, postrider.MaxTopicLen), inboxsql.Clean(m.Type, postrider.MaxTypeLen))
	if err := row.Scan(&fate); err != nil {
		return false, false, in.wrap("claim", m.ID, err)
	}
	return fate == 1, fate == 2, nil
}

// KeepResult stores the result of processing a message with its claim, which
// the same transaction must have made: a duplicate can be answered with it. It commits
// with the effect or not at all, and [Inbox.Prune] forgets it with the
// claim. More than [MaxResult] bytes are refused, and so is a second
// result. It is stored unchanged: its author is responsible for its contents.
func (in *Inbox) KeepResult(ctx context.Context, tx outbox.Tx, id string, result []byte) error {
	if in.who.Err != nil {
		return in.who.Err
	}
	if err := outbox.CheckTx(tx); err != nil {
		return err
	}
	if len(result) > MaxResult {
		return fmt.Errorf("inbox %q: keep the result of message %s: it has %d bytes, at most %d are kept", in.who.Consumer, id, len(result), MaxResult)
	}
	res, err := in.sql.keep.Exec(ctx, tx, in.who.Consumer, id, append([]byte{}, result...))
	if err != nil {
		return in.wrap("keep the result of", id, err)
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, fmt.Errorf("inbox %q: keep the result of message %s: it is not claimed, or has a result already", in.who.Consumer, id))
	}
	return nil
}

// Result returns the result stored with the claim of a message, in the transaction
// whose Claim was not fresh, or later. The error is [ErrNoResult] if there is
// none, whether or not the message was claimed.
func (in *Inbox) Result(ctx context.Context, db Conn, id string) ([]byte, error) {
	if in.who.Err != nil {
		return nil, in.who.Err
	}
	var (
		kept   int
		result []byte
	)
	if err := inboxsql.QueryRow(ctx, db, in.sql.result, in.who.Consumer, id).Scan(&kept, &result); err != nil {
		return nil, in.wrap("read the result of", id, err)
	}
	if kept == 0 {
		return nil, fmt.Errorf("inbox %q: message %s: %w", in.who.Consumer, id, ErrNoResult)
	}
	return result, nil
}

// OnceResult is [Inbox.Once] for an effect with a result: it stores the result of
// fn, and returns it for a duplicate. fresh reports whether fn has run. The error
// is [ErrNoResult] if the message was processed without storing a result: the
// effect exists, but has no result.
func (in *Inbox) OnceResult(ctx context.Context, db Beginner, m postrider.Message, fn func(tx *sql.Tx) ([]byte, error)) (result []byte, fresh bool, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, false, in.wrap("begin for", m.ID, err)
	}
	defer tx.Rollback() //nolint:errcheck // as in Once
	result, fresh, err = in.answer(ctx, SQL(tx), m, func() ([]byte, error) { return fn(tx) })
	if err != nil || !fresh {
		return result, fresh, err
	}
	if err := tx.Commit(); err != nil {
		return nil, false, in.wrap("commit", m.ID, err)
	}
	return result, true, nil
}

// OnceResultPgx is [Inbox.OnceResult] for pgx.
func OnceResultPgx[T PgxTx[Tag, R], Tag outbox.CommandTag, R Row](ctx context.Context, in *Inbox, db PgxBeginner[T], m postrider.Message, fn func(tx T) ([]byte, error)) (result []byte, fresh bool, err error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, false, in.wrap("begin for", m.ID, err)
	}
	defer inboxsql.Rollback(ctx, tx)
	result, fresh, err = in.answer(ctx, Pgx[Tag, R](tx), m, func() ([]byte, error) { return fn(tx) })
	if err != nil || !fresh {
		return result, fresh, err
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, false, in.wrap("commit", m.ID, err)
	}
	return result, true, nil
}

// answer claims m and stores the result of fn, or returns the stored result.
func (in *Inbox) answer(ctx context.Context, tx Conn, m postrider.Message, fn func() ([]byte, error)) (result []byte, fresh bool, err error) {
	if fresh, err = in.Claim(ctx, tx, m); err != nil {
		return nil, false, err
	}
	if !fresh {
		result, err = in.Result(ctx, tx, m.ID)
		return result, false, err
	}
	if result, err = fn(); err != nil {
		return nil, false, Classify(err)
	}
	if err = in.KeepResult(ctx, tx, m.ID, result); err != nil {
		return nil, false, err
	}
	return result, true, nil
}
