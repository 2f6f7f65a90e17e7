package operations

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// Request implements ops.Admin.
func (s *Admin) Request(ctx context.Context, act store.Act) (id int64, err error) {
	switch act.Kind {
	case store.ActRetry, store.ActDiscard:
	case store.ActPause, store.ActResume:
		return 0, s.need(ops.CanHold)
	case store.ActSkip, store.ActReplay:
		return 0, s.need(ops.CanOrder)
	default:
		return 0, fmt.Errorf("act %q: %w", act.Kind, ops.ErrUnsupported)
	}
	err = s.Write(ctx, "request", func(q db.Querier) error {
		var lane store.Lane
		err := q.QueryRowContext(ctx, `SELECT lane FROM postrider_parked WHERE pipe = ? AND seq = ?`, s.Pipe, act.Seq).Scan(&lane)
		if errors.Is(err, sql.ErrNoRows) {
			return cmp.Or(s.Knows(ctx, q, db.Pipes), fmt.Errorf("parked record %d of pipe %q: %w", act.Seq, s.Pipe, store.ErrNotFound))
		}
		if err != nil {
			return err
		}
		return q.QueryRowContext(ctx, `INSERT INTO postrider_request (pipe, lane, seq, kind, actor, reason, created_at)
			VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id`,
			s.Pipe, lane, act.Seq, string(act.Kind), act.Actor, act.Reason, db.Micros(s.Now())).Scan(&id)
	})
	return id, err
}

// Acts implements ops.Admin.
func (s *Admin) Acts(ctx context.Context, ids ...int64) ([]ops.ActState, error) {
	var acts []ops.ActState
	for _, id := range ids {
		a := ops.ActState{ID: id}
		err := s.DB.QueryRowContext(ctx, `SELECT lane, done_at IS NOT NULL, result FROM postrider_request WHERE pipe = ? AND id = ?`,
			s.Pipe, id).Scan(&a.Lane, &a.Done, &a.Result)
		if errors.Is(err, sql.ErrNoRows) {
			err = store.ErrNotFound
		}
		if err != nil {
			return nil, s.Wrap(fmt.Sprintf("request %d", id), err)
		}
		acts = append(acts, a)
	}
	return acts, nil
}

// Parked implements ops.Admin.
func (s *Admin) Parked(ctx context.Context, query ops.ParkedQuery) ([]ops.ParkedRecord, error) {
	where, args := s.which(query)
	found, err := s.parked(ctx, query.Bare, where, args...)
	if err == nil && len(found) == 0 {
		err = s.Wrap("list parked records", s.Knows(ctx, s.DB, db.Pipes))
	}
	return found, err
}

// which is the condition for the records of a query, with its arguments. The planner has no
// figures of the table, so each condition leaves it one index that fits: that of states is
// on an expression, and a number is no reason to read all records in its order for one id.
func (s *Admin) which(query ops.ParkedQuery) (where string, args []any) {
	seq := "seq"
	if query.ID != "" {
		seq = "+seq"
	}
	where, args = "pipe = ? AND "+seq+" > ?", []any{s.Pipe, query.AfterSeq}
	dead := query.State == store.Dead && query.Topic+query.Code != ""
	switch name := query.State.String(); {
	case query.State == store.Pending:
	case query.ID+query.Key != "" || dead: // in the text: an index of dead letters is used only then
		where += " AND state = '" + name + "'"
	default:
		where += " AND state || '' = '" + name + "'"
	}
	for _, f := range []struct{ column, value string }{
		{"id", strings.ToLower(query.ID)}, {"topic", query.Topic}, {"key", query.Key}, {"code", query.Code},
	} {
		if f.value != "" {
			where, args = where+" AND "+f.column+" = ?", append(args, f.value)
		}
	}
	most := query.Limit
	if most <= 0 {
		most = 100
	}
	return where + " ORDER BY " + seq + " LIMIT ?", append(args, most)
}

// bare are the columns of a message without its payload.
const bare = "id, topic, key, type, x'', content_type, headers, version, schema_version, not_before, created_at"

// parked reads parked records.
func (s *Admin) parked(ctx context.Context, withoutPayload bool, where string, args ...any) ([]ops.ParkedRecord, error) {
	columns := db.MessageColumns
	if withoutPayload {
		columns = bare
	}
	rows, err := s.DB.QueryContext(ctx, `SELECT lane, seq, state, captures, attempts, generation, due_at, class, code, error,
		first_failed, last_attempt, history, `+columns+` FROM postrider_parked WHERE `+where, args...)
	if err != nil {
		return nil, s.Wrap("list parked records", err)
	}
	defer rows.Close()
	var out []ops.ParkedRecord
	for rows.Next() {
		var r ops.ParkedRecord
		var name, history string
		var due int64
		var first, last sql.NullInt64
		r.Message, err = db.ScanMessage(rows, []any{
			&r.Lane, &r.Seq, &name, &r.Captures, &r.Attempts, &r.Generation, &due,
			&r.Class, &r.Code, &r.Error, &first, &last, &history,
		}, nil)
		if err == nil {
			r.History, err = db.AttemptsOf(history)
		}
		if err != nil {
			return nil, s.Wrap("list parked records", err)
		}
		r.State, r.DueIn, r.FirstFailed, r.LastAttempt = db.StateOf(name), s.Until(due), db.Moment(first), db.Moment(last)
		out = append(out, r)
	}
	return out, s.Wrap("list parked records", rows.Err())
}

// Execute does what a person asked for, once, inside the settlement of its lane.
func Execute(ctx context.Context, s *db.Outbox, q db.Querier, lane store.Lane, id int64) error {
	var kind store.ActKind
	var seq int64
	err := q.QueryRowContext(ctx, `SELECT kind, seq FROM postrider_request WHERE id = ? AND pipe = ? AND lane = ? AND done_at IS NULL`,
		id, s.Pipe, lane).Scan(&kind, &seq)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	now := db.Micros(s.Now())
	if kind == store.ActDiscard {
		if err := note(ctx, s, q, lane, seq, nil); err != nil {
			return err
		}
	}
	query, args := `DELETE FROM postrider_parked WHERE pipe = ? AND lane = ? AND seq = ?`, []any{s.Pipe, lane, seq}
	if kind == store.ActRetry {
		// What waits behind a head, or for its time, stays what it is. Only a dead letter becomes
		// a message that a person sends again: of another one, the broker may still recognise
		// an attempt whose outcome is unknown.
		query = `UPDATE postrider_parked SET attempts = 0, generation = generation + (state = 'dead'), due_at = ?,
			captures = CASE WHEN state IN ('dead', 'retry') THEN key <> '' ELSE captures END,
			state = CASE state WHEN 'dead' THEN 'retry' ELSE state END WHERE pipe = ? AND lane = ? AND seq = ?`
		args = append([]any{now}, args...)
	}
	res, err := q.ExecContext(ctx, query, args...)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return err
	}
	result := ops.ResultDone
	if n == 0 {
		result = ops.ResultGone
	}
	_, err = q.ExecContext(ctx, `UPDATE postrider_request SET done_at = ?, result = ? WHERE id = ?`, now, result, id)
	return err
}

// Unpark removes a parked record that was sent, at a time in microseconds.
func Unpark(ctx context.Context, s *db.Outbox, q db.Querier, lane store.Lane, seq int64, at *int64) error {
	if err := note(ctx, s, q, lane, seq, at); err != nil {
		return err
	}
	_, err := q.ExecContext(ctx, `DELETE FROM postrider_parked WHERE pipe = ? AND lane = ? AND seq = ?`, s.Pipe, lane, seq)
	return err
}

// note keeps for the view when a parked record was sent: the cursor passed it earlier. nil: it
// was discarded. It does nothing where no such record is parked, or its row is gone.
func note(ctx context.Context, s *db.Outbox, q db.Querier, lane store.Lane, seq int64, at *int64) error {
	_, err := q.ExecContext(ctx, `INSERT INTO postrider_unparked (pipe, seq, lane, at)
		SELECT k.pipe, k.seq, k.lane, ? FROM postrider_parked k JOIN postrider_outbox o ON o.seq = k.seq
		WHERE k.pipe = ? AND k.lane = ? AND k.seq = ? ON CONFLICT (pipe, seq) DO UPDATE SET at = excluded.at`, at, s.Pipe, lane, seq)
	return err
}
