package inboxwork

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
)

// Ruling is the decision of a guard about a message.
type Ruling uint8

// The rulings. Only for Apply is the effect run; all are acknowledged once the
// transaction has committed.
const (
	Apply Ruling = iota // it is the key's turn; the mark has moved to it
	Stale               // its version, or a later one, was applied before: drop it
	Early               // versions before it are missing: it has been put into the stash
	Gone                // another transaction has had it
)

// ErrNoPlace is matched when a message has no place in the order of its topic: it has
// no key, no version, a gap header that cannot be read, or, where it may have to
// wait, a key that is no text.
var ErrNoPlace = errors.New("the message has no place in its topic's order")

// Guard decides inside tx whether m, which the same transaction has claimed,
// takes its turn in its key, and moves the key's mark with it: the version that
// was applied last. The mark is kept per consumer, topic and key, and for ever;
// transactions of one key follow each other. origin is where m stands, for
// people. A message without key or version is refused with [ErrNoPlace],
// unless order is inbox.AnyOrder. waiting means that messages of the key are in the
// stash: when tx has been committed and the ruling was Apply, call [Inbox.Unstash].
func (in *Inbox) Guard(ctx context.Context, tx inbox.Conn, m postrider.Message, order inbox.Order, origin string) (r Ruling, waiting bool, err error) {
	if err := in.who.Usable(m.ID); err != nil {
		return 0, false, err
	}
	if order == inbox.AnyOrder {
		return Apply, false, nil
	}
	needs, err := in.placeOf(&m, order)
	if err != nil {
		return 0, false, err
	}
	moved, waiting, err := in.moveMark(ctx, tx, &m, needs)
	switch {
	case err != nil:
		return 0, false, err
	case moved:
		return Apply, waiting && order == inbox.Contiguous, nil
	case order == inbox.Latest:
		return Stale, false, in.became(ctx, tx, m.ID, inbox.Outdated)
	}
	return in.outOfTurn(ctx, tx, &m, needs, origin)
}

// placeOf is the version that m's key must have reached before m, 0 where the
// order does not ask for one.
func (in *Inbox) placeOf(m *postrider.Message, order inbox.Order) (needs int64, err error) {
	switch {
	case m.Key == "" || m.Version < 1:
		return 0, fmt.Errorf("inbox %q: message %s: %w: a key and a version are needed", in.who.Consumer, m.ID, ErrNoPlace)
	case order != inbox.Contiguous:
		return 0, nil
	case strings.HasPrefix(in.key(m), digestPrefix) || strings.HasPrefix(in.topic(m), digestPrefix): // nobody can read from it what it was
		return 0, fmt.Errorf("inbox %q: message %s: %w: what waits for its turn needs a topic and a key of text (UTF-8 without zero bytes) of at most %d and %d bytes",
			in.who.Consumer, m.ID, ErrNoPlace, postrider.MaxTopicLen, postrider.MaxKeyLen)
	}
	return needed(m)
}

// needed is the version that m's key must have reached: the one before m's, or
// the last one that is not announced as missing.
func needed(m *postrider.Message) (int64, error) {
	n := m.Version - 1
	value := m.Headers[envelope.Gap]
	if value == "" {
		return n, nil
	}
	missing, err := envelope.ParseGap(value)
	if err != nil {
		return 0, fmt.Errorf("message %s: %w: header %s %w", m.ID, ErrNoPlace, envelope.Gap, err)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if v := missing[i]; v.First <= n && n <= v.Last {
			n = v.First - 1
		}
	}
	return n, nil
}

// moveMark moves the key's mark to m's version if it is at least needs and below
// that version. waiting: messages of the key are in the stash.
func (in *Inbox) moveMark(ctx context.Context, tx inbox.Conn, m *postrider.Message, needs int64) (moved, waiting bool, err error) {
	topic, key, g := in.topic(m), in.key(m), &in.sql.guard
	var n, w int64
	if g.move.None() {
		moved, err = g.mark.Move(ctx, tx, in.who.Consumer, topic, key, m.Version, needs)
		if err == nil && moved {
			err = inboxsql.QueryRow(ctx, tx, g.waits, in.who.Consumer, topic, key).Scan(&w)
		}
	} else {
		err = inboxsql.QueryRow(ctx, tx, g.move, in.who.Consumer, topic, key, m.Version, needs).Scan(&n, &w)
		moved = n > 0
	}
	if err != nil {
		return false, false, in.wrap("move the mark for", m.ID, err)
	}
	return moved, w > 0, nil
}

// outOfTurn locks the mark, and tells a late message from an early one, which it
// puts into the stash.
func (in *Inbox) outOfTurn(ctx context.Context, tx inbox.Conn, m *postrider.Message, needs int64, origin string) (Ruling, bool, error) {
	mark, err := in.lockMark(ctx, tx, in.topic(m), in.key(m))
	if err != nil {
		return 0, false, err
	}
	switch {
	case mark >= m.Version:
		return Stale, false, in.became(ctx, tx, m.ID, inbox.Outdated)
	case mark < needs:
		return Early, true, in.wait(ctx, tx, m, needs, origin)
	}
	// The mark has moved between the two statements.
	if _, _, err := in.moveMark(ctx, tx, m, needs); err != nil {
		return 0, false, err
	}
	return Apply, true, nil
}

func (in *Inbox) lockMark(ctx context.Context, tx inbox.Conn, topic, key string) (mark int64, err error) {
	if err := in.sql.guard.lock.scan(ctx, tx, []any{in.who.Consumer, topic, key}, &mark); err != nil {
		return 0, inbox.Classify(fmt.Errorf("inbox %q: lock the mark of a key: %w", in.who.Consumer, err))
	}
	return mark, nil
}

// topic and key are a message's as the tables can hold them.
func (in *Inbox) topic(m *postrider.Message) string { return name(m.Topic, postrider.MaxTopicLen) }
func (in *Inbox) key(m *postrider.Message) string   { return name(m.Key, postrider.MaxKeyLen) }

// name is s, or where that is no text of at most limit bytes, such as a Kafka key
// in a binary encoding, a digest in its place: two keys must not become one.
func name(s string, limit int) string {
	if inboxsql.Clean(s, limit) == s {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return digestPrefix + hex.EncodeToString(sum[:])
}

// digestPrefix is what no sensible key begins with.
const digestPrefix = "\ufffdsha256:"

// Mark returns the last version of the key that was applied or passed over, 0
// before the first.
func (in *Inbox) Mark(ctx context.Context, db inbox.Conn, topic, key string) (version int64, err error) {
	if in.who.Err != nil {
		return 0, in.who.Err
	}
	if err := inboxsql.QueryRow(ctx, db, in.sql.guard.read, in.who.Consumer, topic, key).Scan(&version); err != nil {
		return 0, inbox.Classify(fmt.Errorf("inbox %q: read the mark of a key: %w", in.who.Consumer, err))
	}
	return version, nil
}

// SetMark moves the mark of a key to version, also back, and returns where it
// was. Versions up to it count as applied; what waits in the stash behind it is
// taken up by a running consumer. Moving it back does not bring messages back:
// send them again with a new id, or forget their claims.
func (in *Inbox) SetMark(ctx context.Context, tx inbox.Conn, topic, key string, version int64) (was int64, err error) {
	switch {
	case in.who.Err != nil:
		return 0, in.who.Err
	case key == "" || version < 0:
		return 0, fmt.Errorf("inbox %q: set the mark of key %q to %d: a key and a version of at least 0 are needed", in.who.Consumer, key, version)
	}
	if was, err = in.lockMark(ctx, tx, topic, key); err != nil {
		return 0, err
	}
	if _, err := in.sql.guard.set.Exec(ctx, tx, in.who.Consumer, topic, key, version); err != nil {
		return 0, inbox.Classify(fmt.Errorf("inbox %q: set the mark of a key: %w", in.who.Consumer, err))
	}
	return was, nil
}

// Marks lists the marks of the consumer by topic and key, at most limit of them,
// from behind the topic and key given; topic "" and key "" for the first page.
// only, if it is not empty, is the one topic to list.
func (in *Inbox) Marks(ctx context.Context, db inbox.Querier, only, topic, key string, limit int) ([]inbox.KeyMark, error) {
	if in.who.Err != nil {
		return nil, in.who.Err
	}
	rows, err := in.sql.guard.list.Query(ctx, db, in.who.Consumer, only, topic, key, limit)
	if err != nil {
		return nil, fmt.Errorf("inbox %q: list the marks: %w", in.who.Consumer, err)
	}
	defer rows.Close()
	var out []inbox.KeyMark
	for rows.Next() {
		var (
			m  inbox.KeyMark
			at int64
		)
		if err := rows.Scan(&m.Topic, &m.Key, &m.Version, &at); err != nil {
			return nil, fmt.Errorf("inbox %q: read a mark: %w", in.who.Consumer, err)
		}
		m.UpdatedAt = time.UnixMicro(at).UTC()
		out = append(out, m)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("inbox %q: list the marks: %w", in.who.Consumer, err)
	}
	return out, nil
}
