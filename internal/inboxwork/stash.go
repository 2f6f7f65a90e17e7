package inboxwork

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
)

// Stashed is a message that waits in the database for its turn.
type Stashed struct {
	Message postrider.Message
	Origin  string // where it stood: "orders/3@1041"
	// Undecodable is why it is no message but a record that could not be decoded, a dead
	// letter that was revived; "" for all others.
	Undecodable string

	needs int64
}

// putStash keeps m, body included, until the key has reached needs.
func (in *Inbox) putStash(ctx context.Context, tx inbox.Conn, m *postrider.Message, needs int64, origin string) error {
	headers, err := json.Marshal(cleanHeaders(m.Headers))
	if err != nil {
		return in.wrap("encode the headers of", m.ID, err)
	}
	args := append(in.names(m, origin), needs, m.Version, int64(m.SchemaVersion), append([]byte{}, m.Payload...),
		inboxsql.Clean(m.ContentType, postrider.MaxContentTypeLen), string(headers), created(m))
	if _, err := in.sql.guard.put.Exec(ctx, tx, args...); err != nil {
		return in.wrap("stash", m.ID, err)
	}
	return nil
}

// wait puts a message that was claimed now into the stash.
func (in *Inbox) wait(ctx context.Context, tx inbox.Conn, m *postrider.Message, needs int64, origin string) error {
	if err := in.putStash(ctx, tx, m, needs, origin); err != nil {
		return err
	}
	return in.became(ctx, tx, m.ID, inbox.Waiting)
}

// scanStashed reads a row, whose id is empty when no message was found.
func scanStashed(row inbox.Row) (Stashed, error) {
	var (
		s       Stashed
		m       = &s.Message
		headers string
		created int64
		raw     []byte
	)
	err := row.Scan(&m.ID, &m.Topic, &m.Key, &m.Type, &s.Origin, &s.needs, &m.Version, &m.SchemaVersion,
		&m.Payload, &m.ContentType, &headers, &created, &raw, &s.Undecodable)
	if err != nil || m.ID == "" {
		return s, err
	}
	if created != 0 {
		m.Time = time.UnixMicro(created).UTC()
	}
	if raw != nil {
		m.Key = string(raw)
	}
	return s, json.Unmarshal([]byte(headers), &m.Headers)
}

// ErrEnough is what the function of [Inbox.Unstash] returns, without an effect, to leave a
// message and all behind it for another transaction.
var ErrEnough = errors.New("enough for one transaction")

// Unstash runs fn, inside tx, for the messages of a key whose turn has come
// since they were put into the stash, in their order and at most limit of them;
// then it moves the key's mark to the last one and removes them. It returns how
// many there were, and how many others were removed because they had become
// stale. After [ErrEnough] of fn it ends as after the last one. After another error, which
// may be fn's, roll tx back: then all of them stay.
func (in *Inbox) Unstash(ctx context.Context, tx inbox.Conn, topic, key string, limit int, fn func(Stashed) error) (applied, stale int, err error) {
	if in.who.Err != nil {
		return 0, 0, in.who.Err
	}
	begin, err := in.lockMark(ctx, tx, topic, key)
	if err != nil {
		return 0, 0, err
	}
	mark, ids := begin, []string{}
	touched, err := in.touched(ctx, tx, topic, key)
	if err != nil {
		return 0, 0, err
	}
	for applied < limit {
		s, err := in.head(ctx, tx, topic, key, mark)
		if err != nil {
			return 0, 0, inbox.Classify(fmt.Errorf("inbox %q: read the stash: %w", in.who.Consumer, err))
		}
		if s.Message.ID == "" || s.Undecodable != "" { // the latter dies again, by itself
			break
		}
		if needs, err := needed(&s.Message); err != nil {
			return 0, 0, err
		} else if needs > mark { // it was revived
			if err := in.waitAgain(ctx, tx, &s, mark, needs); err != nil {
				return 0, 0, err
			}
			continue
		}
		if err := fn(s); errors.Is(err, ErrEnough) {
			break
		} else if err != nil {
			return 0, 0, err
		}
		if now, err := in.touched(ctx, tx, topic, key); err != nil {
			return 0, 0, err
		} else if now != touched {
			return 0, 0, in.who.Wrap("process", s.Message.ID, inbox.ErrRolledBack)
		}
		// A sweep may have begun it, and died: nobody would come back to its count.
		if err := in.ForgetAttempts(ctx, tx, s.Message); err != nil {
			return 0, 0, err
		}
		mark, ids = s.Message.Version, append(ids, s.Message.ID)
		applied++
	}
	if mark > begin {
		if _, err := in.sql.guard.set.Exec(ctx, tx, in.who.Consumer, topic, key, mark); err != nil {
			return 0, 0, inbox.Classify(fmt.Errorf("inbox %q: move the mark of a key: %w", in.who.Consumer, err))
		}
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return 0, 0, fmt.Errorf("inbox %q: empty the stash of a key: %w", in.who.Consumer, err)
	}
	if _, err := in.sql.guard.settled.Exec(ctx, tx, in.who.Consumer, string(list), topic, key, mark); err != nil {
		return 0, 0, inbox.Classify(fmt.Errorf("inbox %q: note what became of a stash: %w", in.who.Consumer, err))
	}
	res, err := in.sql.guard.clear.Exec(ctx, tx, in.who.Consumer, topic, key, mark)
	if err != nil {
		return 0, 0, inbox.Classify(fmt.Errorf("inbox %q: empty the stash of a key: %w", in.who.Consumer, err))
	}
	removed, err := res.RowsAffected()
	return applied, int(removed) - applied, err
}

// Key is a key of a topic. Both may be empty: a message of a foreign writer.
type Key struct{ Topic, Key string }

// from is behind, or for nil the first key of all, and the need above which its rows are behind it.
func from(behind *Key) (topic, key string, needs int64) {
	if behind == nil {
		return "", "", -1
	}
	return name(behind.Topic, postrider.MaxTopicLen), name(behind.Key, postrider.MaxKeyLen), maxVersion
}

// DueStashed returns, of the first key behind the one given (nil: of all), the
// stashed message whose turn has come; nil when no key has one. It leaves out
// messages whose next attempt is not due, and for the time patience those that
// another owner (see [Try]) has begun.
func (in *Inbox) DueStashed(ctx context.Context, db inbox.Conn, owner string, patience time.Duration, behind *Key) (_ *Stashed, err error) {
	if in.who.Err != nil {
		return nil, in.who.Err
	}
	var s Stashed
	if due := in.sql.guard.due; due.None() {
		s, err = in.hopToDue(ctx, db, behind, owner, -patience.Microseconds())
	} else {
		topic, key, needs := from(behind)
		s, err = scanStashed(inboxsql.QueryRow(ctx, db, due, in.who.Consumer, topic, key, owner, -patience.Microseconds(), needs))
	}
	if err != nil {
		return nil, inbox.Classify(fmt.Errorf("inbox %q: look for stashed messages that are due: %w", in.who.Consumer, err))
	}
	if s.Message.ID == "" {
		return nil, nil //nolint:nilnil // documented: there is none
	}
	return &s, nil
}

// HoldStashed reports whether the message is still in the stash, and keeps Unstash from
// its key until tx ends. A try that BeginAttempt counts in the same transaction is
// then one of a message that is there: whoever takes it out forgets the count.
func (in *Inbox) HoldStashed(ctx context.Context, tx inbox.Conn, s Stashed) (there bool, err error) {
	if in.who.Err != nil {
		return false, in.who.Err
	}
	if _, err := in.lockMark(ctx, tx, in.topic(&s.Message), in.key(&s.Message)); err != nil {
		return false, err
	}
	n := 0
	if err := inboxsql.QueryRow(ctx, tx, in.sql.guard.there, in.who.Consumer, s.Message.ID).Scan(&n); err != nil {
		return false, in.wrap("look in the stash for", s.Message.ID, err)
	}
	return n > 0, nil
}

// TakeStashed takes one message out of the stash inside tx. The caller runs its
// effect there when the ruling is Apply. It is Stale when the key has gone past
// the message meanwhile, and Gone when somebody else has taken it. A dead letter
// that was revived is Early while versions before it are missing, and may have no
// place in the order still: [ErrNoPlace].
func (in *Inbox) TakeStashed(ctx context.Context, tx inbox.Conn, s Stashed, order inbox.Order) (Ruling, error) {
	m, mark, needs := &s.Message, s.needs, int64(0)
	if order != inbox.AnyOrder {
		var err error
		if needs, err = in.placeOf(m, order); err != nil {
			return 0, err
		}
		if mark, err = in.lockMark(ctx, tx, in.topic(m), in.key(m)); err != nil {
			return 0, err
		}
	}
	switch there, err := in.dropStashed(ctx, tx, m.ID, mark); {
	case err != nil:
		return 0, err
	case !there:
		return Gone, nil
	case order == inbox.AnyOrder:
		return Apply, in.became(ctx, tx, m.ID, inbox.Applied)
	case m.Version <= mark:
		return Stale, in.became(ctx, tx, m.ID, inbox.Outdated)
	case mark < needs:
		return Early, in.putStash(ctx, tx, m, needs, s.Origin)
	}
	if _, err := in.sql.guard.set.Exec(ctx, tx, in.who.Consumer, in.topic(m), in.key(m), m.Version); err != nil {
		return 0, in.wrap("move the mark for", m.ID, err)
	}
	return Apply, in.became(ctx, tx, m.ID, inbox.Applied)
}

var errTakenOut = errors.New("another process has taken it out meanwhile: try again")

// waitAgain puts a stashed message back with what it needs. Consumers may delete and
// insert there, and may not update.
func (in *Inbox) waitAgain(ctx context.Context, tx inbox.Conn, s *Stashed, mark, needs int64) error {
	there, err := in.dropStashed(ctx, tx, s.Message.ID, mark)
	if err != nil {
		return err
	}
	if !there {
		return in.who.Wrap("put back into the stash", s.Message.ID, errTakenOut)
	}
	return in.putStash(ctx, tx, &s.Message, needs, s.Origin)
}

// dropStashed removes a stashed message that needs no more than mark.
func (in *Inbox) dropStashed(ctx context.Context, tx inbox.Conn, id string, mark int64) (bool, error) {
	res, err := in.sql.guard.drop.Exec(ctx, tx, in.who.Consumer, id, mark)
	if err != nil {
		return false, in.wrap("take out of the stash", id, err)
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// BuryStashed makes a dead letter of a stashed message. The key's mark stays: in
// a contiguous order the messages behind it wait until it is retried or
// discarded. It reports false when the message is not in the stash.
func (in *Inbox) BuryStashed(ctx context.Context, tx inbox.Conn, s Stashed, attempts int, cause string) (bool, error) {
	there, err := in.dropStashed(ctx, tx, s.Message.ID, maxVersion)
	if err != nil || !there {
		return false, err
	}
	return true, in.writeDead(ctx, tx, &s.Message, s.Origin, attempts, cause, s.Undecodable)
}

// NextGap returns the gap of the first key behind the one given (nil: of all), or nil.
func (in *Inbox) NextGap(ctx context.Context, db inbox.Conn, behind *Key) (*inbox.Gap, error) {
	if in.who.Err != nil {
		return nil, in.who.Err
	}
	var (
		g   inbox.Gap
		age int64
	)
	var err error
	if in.sql.guard.gap.None() {
		err = in.hopToGap(ctx, db, behind, &g, &age)
	} else {
		topic, key, needs := from(behind)
		row := inboxsql.QueryRow(ctx, db, in.sql.guard.gap, in.who.Consumer, topic, key, inbox.GapLimit, needs)
		err = row.Scan(&g.Topic, &g.Key, &g.Mark, &g.Needs, &g.Stashed, &age)
	}
	if err != nil {
		return nil, inbox.Classify(fmt.Errorf("inbox %q: look for gaps: %w", in.who.Consumer, err))
	}
	if g.Stashed == 0 {
		return nil, nil //nolint:nilnil // documented: there is none
	}
	g.Age = max(0, time.Duration(age)*time.Microsecond)
	return &g, nil
}

// SkipGap gives up the versions that are missing in g: they count as applied
// from now on. It reports false, and changes nothing, when the gap is another
// one by now, while another transaction works on the key (except on SQLite), and while a
// message in the gap is tried again or is a dead letter: it is not missing.
func (in *Inbox) SkipGap(ctx context.Context, tx inbox.Conn, g inbox.Gap) (bool, error) {
	mark, err := in.tryMark(ctx, tx, g.Topic, g.Key)
	if err != nil || mark != g.Mark || g.Needs <= mark {
		return false, err
	}
	open := 0
	if err := inboxsql.QueryRow(ctx, tx, in.sql.guard.open, in.who.Consumer, g.Topic, g.Key, mark, g.Needs).Scan(&open); err != nil || open > 0 {
		return false, in.skipping(err)
	}
	_, err = in.sql.guard.set.Exec(ctx, tx, in.who.Consumer, g.Topic, g.Key, g.Needs)
	return err == nil, in.skipping(err)
}

func (in *Inbox) skipping(err error) error {
	if err == nil {
		return nil
	}
	return inbox.Classify(fmt.Errorf("inbox %q: skip a gap: %w", in.who.Consumer, err))
}

// tryMark locks the mark of a key without waiting, and returns -1 when another
// transaction holds it. To wait for a handler would end at the moment when it has failed
// and its failure is not recorded yet.
func (in *Inbox) tryMark(ctx context.Context, tx inbox.Conn, topic, key string) (mark int64, err error) {
	if in.sql.guard.tryLock.None() {
		return in.lockMark(ctx, tx, topic, key)
	}
	err = inboxsql.QueryRow(ctx, tx, in.sql.guard.tryLock, in.who.Consumer, topic, key).Scan(&mark)
	if inboxsql.MySQLBusy(err) {
		return -1, nil
	}
	return mark, in.skipping(err)
}
