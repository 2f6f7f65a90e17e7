package operations

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// Journal is the record of what people did. It is safe for concurrent use.
type Journal struct{ *db.Outbox }

// NewJournal returns the journal of an outbox. It does no I/O.
func NewJournal(o *db.Outbox) Journal { return Journal{o} }

// Entries implements ops.Journal.
func (s Journal) Entries(ctx context.Context, q ops.JournalQuery) ([]ops.JournalEntry, error) {
	const doing = "read the journal"
	where, args := []string{"TRUE"}, []any{}
	only := func(condition string, values ...any) {
		where, args = append(where, condition), append(args, values...)
	}
	if q.ID != 0 {
		only("(id = ? OR ask = ?)", q.ID, q.ID)
	}
	for _, f := range []struct{ column, value string }{{"actor", q.Actor}, {"act", q.Act}, {"pipe", q.Pipe}, {"key", q.Key}} {
		if f.value != "" {
			only(f.column+" = ?", f.value)
		}
	}
	if !q.Since.IsZero() {
		only("at >= ?", db.Micros(q.Since))
	}
	if q.Before != 0 {
		only("id < ?", q.Before)
	}
	limit := q.Limit
	if limit <= 0 {
		limit = 100
	}
	rows, err := s.DB.QueryContext(ctx, `SELECT id, at, actor, act, pipe, lane, seq, key, target, reason, result, records, ask
		FROM postrider_journal WHERE `+strings.Join(where, " AND ")+` ORDER BY id DESC LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, s.Wrap(doing, err)
	}
	defer rows.Close()
	var entries []ops.JournalEntry
	for rows.Next() {
		var e ops.JournalEntry
		var at, lane, count sql.NullInt64
		var target sql.NullString
		if err := rows.Scan(&e.ID, &at, &e.Actor, &e.Act, &e.Pipe, &lane, &e.Seq, &e.Key, &target, &e.Reason, &e.Result, &count, &e.Ask); err != nil {
			return nil, s.Wrap(doing, err)
		}
		e.At = db.Moment(at)
		if lane.Valid {
			one := store.Lane(lane.Int64) //nolint:gosec // at most 4,096
			e.Lane = &one
		}
		if count.Valid {
			e.Count = &count.Int64
		}
		if target.Valid {
			e.Target = json.RawMessage(target.String)
		}
		entries = append(entries, e)
	}
	return entries, s.Wrap(doing, errors.Join(rows.Err(), rows.Close()))
}

// Record implements ops.Recorder.
func (s Journal) Record(ctx context.Context, e ops.JournalEntry) (id int64, err error) {
	const doing = "write into the journal"
	if strings.TrimSpace(e.Actor) == "" || e.Act == "" || strings.TrimSpace(e.Reason) == "" {
		return 0, fmt.Errorf("%s: missing actor, act or reason: give all three", doing)
	}
	e.Pipe = s.Pipe
	err = s.Write(ctx, doing, func(q db.Querier) error {
		id, err = s.Note(ctx, q, &e)
		return err
	})
	return id, err
}
