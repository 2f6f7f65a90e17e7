// Package journal keeps people's acts on an outbox in the table audit.
package journal

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// Results of a journal entry.
const (
	Asked = "asked"
	Done  = "done"
)

// Journal reads and writes the journal of one outbox. It is safe for concurrent use.
type Journal struct {
	*db.Outbox
	sql texts
}

type texts struct{ audit, journal string }

// New returns the journal of an outbox. It does no I/O.
func New(o *db.Outbox) *Journal {
	st, q := texts{}, o.Render
	st.audit = q(`INSERT INTO {{schema}}.audit (actor, act, pipe, lane, seq, key, target, reason, result, count, ask)
VALUES ($1, $2, $3, $4, nullif($5::bigint, 0), $6, coalesce($7::text, '{}')::jsonb, $8, $9, $10, nullif($11::bigint, 0)) RETURNING id`)
	st.journal = q(`SELECT id, at, actor, act, pipe, lane, coalesce(seq, 0), key, nullif(target, '{}')::text, reason, result, count, coalesce(ask, 0)
FROM {{schema}}.audit WHERE ($1::bigint = 0 OR id = $1 OR ask = $1) AND ($2::text = '' OR actor = $2) AND ($3::text = '' OR act = $3)
 AND ($4::text = '' OR pipe = $4) AND ($5::text = '' OR key = $5) AND ($6::timestamptz IS NULL OR at >= $6)
 AND ($7::bigint = 0 OR id < $7) ORDER BY id DESC LIMIT $8`)
	return &Journal{Outbox: o, sql: st}
}

// Write writes a person's act into the journal, in the transaction of the act. The table
// refuses an act without an actor.
func (s *Journal) Write(ctx context.Context, q db.Querier, e ops.JournalEntry) (id int64, err error) {
	err = q.QueryRow(ctx, s.sql.audit, args(e)...).Scan(&id)
	return id, err
}

func args(e ops.JournalEntry) []any {
	var target *string
	if len(e.Target) > 0 {
		text := string(e.Target)
		target = &text
	}
	return []any{
		e.Actor, e.Act, e.Pipe, e.Lane, e.Seq, e.Key, target, e.Reason, cmp.Or(e.Result, Done), e.Count, e.Ask,
	}
}

// Record implements ops.Recorder. The entry is of this pipe.
func (s *Journal) Record(ctx context.Context, e ops.JournalEntry) (id int64, err error) {
	const doing = "write into the journal"
	switch {
	case s.Bad != nil:
		return 0, s.Bad
	case strings.TrimSpace(e.Actor) == "" || e.Act == "" || strings.TrimSpace(e.Reason) == "":
		return 0, fmt.Errorf("%s: missing actor, act or reason: give all three", doing)
	}
	e.Pipe = s.Pipe
	err = s.LookingAnew(ctx, func(tx pgx.Tx) error {
		id, err = s.Write(ctx, tx, e)
		return err
	})
	if err != nil {
		return 0, s.Wrap(doing, err)
	}
	return id, nil
}

// Entries lists the journal, the newest entry first.
func (s *Journal) Entries(ctx context.Context, q ops.JournalQuery) ([]ops.JournalEntry, error) {
	if s.Bad != nil {
		return nil, s.Bad
	}
	limit := q.Limit
	if limit <= 0 {
		limit = 100
	}
	var since *time.Time
	if !q.Since.IsZero() {
		since = &q.Since
	}
	var entries []ops.JournalEntry
	err := s.Ask(ctx, func(rows pgx.Rows) error {
		for rows.Next() {
			var e ops.JournalEntry
			var target *string
			err := rows.Scan(&e.ID, &e.At, &e.Actor, &e.Act, &e.Pipe, &e.Lane, &e.Seq, &e.Key, &target, &e.Reason,
				&e.Result, &e.Count, &e.Ask)
			if err != nil {
				return err
			}
			e.At = e.At.UTC()
			if target != nil {
				e.Target = json.RawMessage(*target)
			}
			entries = append(entries, e)
		}
		return rows.Err()
	}, s.sql.journal, q.ID, q.Actor, q.Act, q.Pipe, q.Key, since, q.Before, limit)
	if err != nil {
		return nil, s.Wrap("read the journal", err)
	}
	return entries, nil
}
