package pgstore

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store/ops"
)

// Results of a journal entry.
const (
	auditAsked = "asked"
	auditDone  = "done"
)

// journalSQL holds the texts of the journal, which is the table audit.
func (st *statements) journalSQL(q func(string) string) {
	st.audit = q(`INSERT INTO {{schema}}.audit (actor, act, pipe, lane, seq, key, target, reason, result, count, ask)
VALUES ($1, $2, $3, $4, nullif($5::bigint, 0), $6, coalesce($7::text, '{}')::jsonb, $8, $9, $10, nullif($11::bigint, 0)) RETURNING id`)
	st.journal = q(`SELECT id, at, actor, act, pipe, lane, coalesce(seq, 0), key, nullif(target, '{}')::text, reason, result, count, coalesce(ask, 0)
FROM {{schema}}.audit WHERE ($1::bigint = 0 OR id = $1 OR ask = $1) AND ($2::text = '' OR actor = $2) AND ($3::text = '' OR act = $3)
 AND ($4::text = '' OR pipe = $4) AND ($5::text = '' OR key = $5) AND ($6::timestamptz IS NULL OR at >= $6)
 AND ($7::bigint = 0 OR id < $7) ORDER BY id DESC LIMIT $8`)
}

// audit writes what a person does into the journal, in the transaction that does
// it. An act without an actor is refused by the table.
func (s *Store) audit(ctx context.Context, tx pgx.Tx, e ops.JournalEntry) (id int64, err error) {
	err = tx.QueryRow(ctx, s.sql.audit, s.auditArgs(e)...).Scan(&id)
	return id, err
}

// auditArgs are the arguments of the statement audit, for who sends it in a batch.
func (s *Store) auditArgs(e ops.JournalEntry) []any {
	var target *string
	if len(e.Target) > 0 {
		text := string(e.Target)
		target = &text
	}
	return []any{
		e.Actor, e.Act, e.Pipe, e.Lane, e.Seq, e.Key, target, e.Reason, cmp.Or(e.Result, auditDone), e.Count, e.Ask,
	}
}

// Entries lists the journal, the newest entry first.
func (s *Store) Entries(ctx context.Context, q ops.JournalQuery) ([]ops.JournalEntry, error) {
	if s.box.Bad != nil {
		return nil, s.box.Bad
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
	err := s.box.Ask(ctx, func(rows pgx.Rows) error {
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
		return nil, s.box.Wrap("read the journal", err)
	}
	return entries, nil
}
