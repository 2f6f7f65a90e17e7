package inboxwork

import (
	"context"
	"database/sql"
	"strings"

	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
)

// MySQL finds no place in an index by values of another row, so that the walks of
// guard_sql.go, which are one statement elsewhere, would read the stash to its end.
// Here each step is a statement with values: a look takes as many round trips as there
// are keys. Each index is named: without statistics MySQL chooses another one.
type hopStatements struct {
	first, next   inboxsql.Statement // the first key, and the key behind another, with its mark and what it needs least
	dueAt, dueRow inboxsql.Statement // the message with the lowest need that is due, and what to do first
	gap           inboxsql.Statement
	headAt, head  inboxsql.Statement
}

func newHopStatements(l *inboxsql.Language) hopStatements {
	return hopStatements{
		first: l.Statement(strings.Replace(nextHopSQL, "n.key > $3", "n.key >= $3", 1)), next: l.Statement(nextHopSQL), dueAt: l.Statement(dueAtSQL), dueRow: l.Statement(dueRowSQL), gap: l.Statement(gapOfSQL),
		headAt: l.Statement(headAtSQL), head: l.Statement(headRowSQL),
	}
}

const (
	nextHopSQL = `SELECT p.topic, p.key, p.needs, coalesce((SELECT m.version FROM {mark} AS m
WHERE m.consumer = $1 AND m.topic = p.topic AND m.key = p.key), 0)
FROM (SELECT 1 AS one) AS o LEFT JOIN (SELECT n.topic, n.key, n.needs FROM {stash} AS n FORCE INDEX (postrider_inbox_stash_needs)
WHERE n.consumer = $1 AND (n.topic > $2 OR (n.topic = $2 AND n.key > $3)) ORDER BY n.topic, n.key, n.needs LIMIT 1) AS p ON o.one = 1`

	dueAtSQL = `SELECT (SELECT n.version FROM {stash} AS n FORCE INDEX (postrider_inbox_stash_needs)
WHERE n.consumer = $1 AND n.topic = $2 AND n.key = $3 AND n.needs <= $6 AND ` + untriedSQL + ` ORDER BY n.needs, n.version LIMIT 1)`

	dueRowSQL = stashedSQL + `SELECT n.* FROM {stash} AS n FORCE INDEX (postrider_inbox_stash_order)
WHERE n.consumer = $1 AND n.topic = $2 AND n.key = $3 AND n.version <= $7 AND n.needs <= $6 AND ` + untriedSQL + `
ORDER BY n.version LIMIT 1) AS s ON o.one = 1`

	gapOfSQL = `SELECT count(*), coalesce({since}, 0) FROM (SELECT w.stashed_at FROM {stash} AS w FORCE INDEX (postrider_inbox_stash_needs)
WHERE w.consumer = $1 AND w.topic = $2 AND w.key = $3 ORDER BY w.needs LIMIT $4) AS s`

	headAtSQL = `SELECT (SELECT r.version FROM {stash} AS r FORCE INDEX (postrider_inbox_stash_needs)
WHERE r.consumer = $1 AND r.topic = $2 AND r.key = $3 AND r.needs <= $4 AND r.version > $4 ORDER BY r.needs, r.version LIMIT 1)`

	headRowSQL = stashedSQL + `SELECT w.* FROM {stash} AS w FORCE INDEX (postrider_inbox_stash_order)
WHERE w.consumer = $1 AND w.topic = $2 AND w.key = $3 AND w.version > $4 AND w.version <= $5 AND w.needs <= $4
ORDER BY w.version LIMIT 1) AS s ON o.one = 1`
)

// hop is a key with messages in the stash.
type hop struct {
	topic, key  string
	needs, mark int64 // the least that a message of it needs, and how far it has come
}

// hops calls each for the keys behind the one given (nil: all), until it returns true.
func (in *Inbox) hops(ctx context.Context, db inbox.Conn, behind *Key, each func(h *hop) (done bool, err error)) error {
	topic, key, _ := from(behind)
	step := in.sql.guard.hop.next
	if behind == nil {
		step = in.sql.guard.hop.first
	}
	for ; ; step = in.sql.guard.hop.next {
		var (
			t, k  sql.NullString
			needs sql.NullInt64
			h     hop
		)
		if err := inboxsql.QueryRow(ctx, db, step, in.who.Consumer, topic, key).Scan(&t, &k, &needs, &h.mark); err != nil || !t.Valid {
			return err
		}
		h.topic, h.key, h.needs = t.String, k.String, needs.Int64
		if done, err := each(&h); err != nil || done {
			return err
		}
		topic, key = h.topic, h.key
	}
}

// hopToDue is the statement due.
func (in *Inbox) hopToDue(ctx context.Context, db inbox.Conn, behind *Key, owner string, patience int64) (s Stashed, err error) {
	at := &in.sql.guard.hop
	err = in.hops(ctx, db, behind, func(h *hop) (bool, error) {
		if h.needs > h.mark {
			return false, nil
		}
		args := []any{in.who.Consumer, h.topic, h.key, owner, patience, h.mark}
		var version sql.NullInt64
		err := inboxsql.QueryRow(ctx, db, at.dueAt, args...).Scan(&version)
		if err != nil || !version.Valid {
			return false, err
		}
		s, err = scanStashed(inboxsql.QueryRow(ctx, db, at.dueRow, append(args, version.Int64)...))
		return s.Message.ID != "", err
	})
	return s, err
}

// hopToGap is the statement gap.
func (in *Inbox) hopToGap(ctx context.Context, db inbox.Conn, behind *Key, g *inbox.Gap, age *int64) error {
	return in.hops(ctx, db, behind, func(h *hop) (bool, error) {
		if h.needs <= h.mark {
			return false, nil
		}
		g.Topic, g.Key, g.Mark, g.Needs = h.topic, h.key, h.mark, h.needs
		err := inboxsql.QueryRow(ctx, db, in.sql.guard.hop.gap, in.who.Consumer, h.topic, h.key, inbox.GapLimit).Scan(&g.Stashed, age)
		return g.Stashed > 0, err
	})
}

// head is the stashed message of a key whose turn it is at mark.
func (in *Inbox) head(ctx context.Context, tx inbox.Conn, topic, key string, mark int64) (Stashed, error) {
	g := &in.sql.guard
	if !g.head.None() {
		return scanStashed(inboxsql.QueryRow(ctx, tx, g.head, in.who.Consumer, topic, key, mark))
	}
	var bound sql.NullInt64
	err := inboxsql.QueryRow(ctx, tx, g.hop.headAt, in.who.Consumer, topic, key, mark).Scan(&bound)
	if err != nil || !bound.Valid {
		return Stashed{}, err
	}
	return scanStashed(inboxsql.QueryRow(ctx, tx, g.hop.head, in.who.Consumer, topic, key, mark, bound.Int64))
}
