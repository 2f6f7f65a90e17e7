package db

import (
	"cmp"
	"context"
	"database/sql"
	"math/rand/v2"
	"strings"

	"github.com/postrider/postrider/store/ops"
)

// Results of a journal entry, and who acts when nobody is named.
const (
	ResultAsked = "asked"
	Nobody      = "unknown"
)

// Note writes an entry into the journal, in the transaction of q. Its ID, At and Ask are
// not used: entries with the same link belong to the one of them whose result is asked.
func (o *Outbox) Note(ctx context.Context, q Querier, e *ops.JournalEntry, link sql.NullInt64) (id int64, err error) {
	if strings.TrimSpace(e.Actor) == "" {
		e.Actor = Nobody
	}
	var target any
	if len(e.Target) > 0 {
		target = string(e.Target)
	}
	res, err := q.ExecContext(ctx, "INSERT INTO postrider_journal (at, actor, act, pipe, lane, seq, `key`, target, reason, result, records, request)"+
		` VALUES (`+Now+`, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		e.Actor, e.Act, e.Pipe, e.Lane, e.Seq, []byte(e.Key), target, e.Reason, cmp.Or(e.Result, ops.ResultDone), e.Count, link)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

// NewLink returns a link of entries that no act on one record has: these have positive
// numbers.
func NewLink() sql.NullInt64 { return sql.NullInt64{Int64: -1 - rand.Int64(), Valid: true} }

// LinkOf returns the link of an entry.
func LinkOf(ctx context.Context, q Querier, entry int64) (link sql.NullInt64, err error) {
	err = q.QueryRowContext(ctx, `SELECT request FROM postrider_journal WHERE id = ?`, entry).Scan(&link)
	return link, err
}
