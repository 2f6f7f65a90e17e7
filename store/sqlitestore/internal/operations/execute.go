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

// ManySuffix distinguishes pages of an order from acts on one record.
const ManySuffix = "-many"

// KindOf is the act of a request of some kind.
func KindOf(kind string) store.ActKind { return store.ActKind(strings.TrimSuffix(kind, ManySuffix)) }

// request is one that is open, with what carries it out.
type request struct {
	*db.Outbox
	q     db.Querier // in the settlement of the lane
	lane  store.Lane
	began int64 // when the settlement carries it out

	id, seq, ask, moved    int64
	kind, key              string
	actor, reason          string
	upto, gate, generation sql.NullInt64
	rate                   sql.NullFloat64
	created                int64
	ran                    sql.NullInt64 // when a page of the order moved records last, in any lane
	orderArgs
}

// Execute does what a person asked for, once, inside the settlement of its lane. Of an order it
// does one page.
func Execute(ctx context.Context, s *db.Outbox, q db.Querier, lane store.Lane, id int64) error {
	r := &request{Outbox: s, q: q, lane: lane, id: id, began: db.Micros(s.Now())}
	var args sql.NullString
	err := q.QueryRowContext(ctx, `SELECT kind, seq, key, actor, reason, ask, moved, upto, gate, args, rate, generation, created_at,
		(SELECT max(s.ran_at) FROM postrider_request s WHERE s.ask = r.ask AND r.ask <> 0)
		FROM postrider_request r WHERE id = ? AND pipe = ? AND lane = ? AND done_at IS NULL`, id, s.Pipe, lane).
		Scan(&r.kind, &r.seq, &r.key, &r.actor, &r.reason, &r.ask, &r.moved, &r.upto, &r.gate, &args, &r.rate, &r.generation, &r.created, &r.ran)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil // of another lane, or done
	case err != nil:
		return err
	case args.Valid:
		if err := json.Unmarshal([]byte(args.String), &r.orderArgs); err != nil {
			return fmt.Errorf("arguments of an order: %w", err)
		}
	}
	switch store.ActKind(r.kind) {
	case store.ActRetry, store.ActDiscard:
		return r.record(ctx)
	case store.ActPause, store.ActResume:
		return r.hold(ctx)
	case store.ActReplay:
		return r.replay(ctx)
	case store.ActSkip: // as the kinds with ManySuffix
	}
	return r.many(ctx)
}

// record does an act on one record.
func (r *request) record(ctx context.Context) error {
	if r.kind == string(store.ActDiscard) {
		if err := note(ctx, r.Outbox, r.q, r.lane, r.seq, nil); err != nil {
			return err
		}
	}
	query, args := `DELETE FROM postrider_parked WHERE pipe = ? AND lane = ? AND seq = ?`, []any{r.Pipe, r.lane, r.seq}
	if r.kind == string(store.ActRetry) {
		// A waiting or scheduled record keeps its state. Only a dead letter becomes
		// a message that a person sends again: of another one, the broker may still recognise
		// an attempt whose outcome is unknown.
		query = `UPDATE postrider_parked SET attempts = 0, generation = generation + (state = 'dead'), due_at = ?,
			captures = CASE WHEN state IN ('dead', 'retry') THEN key <> '' ELSE captures END,
			state = CASE state WHEN 'dead' THEN 'retry' ELSE state END WHERE pipe = ? AND lane = ? AND seq = ?`
		args = append([]any{r.began}, args...)
	}
	var generation int64
	result, count := ops.ResultDone, int64(1)
	err := r.q.QueryRowContext(ctx, query+` RETURNING key, generation`, args...).Scan(&r.key, &generation)
	if errors.Is(err, sql.ErrNoRows) {
		result, count, err = ops.ResultGone, 0, nil
	}
	if err == nil {
		err = r.reached(ctx, generation)
	}
	if err != nil {
		return err
	}
	return r.end(ctx, result, &count)
}

// reached keeps the highest generation of the lane.
func (r *request) reached(ctx context.Context, generation int64) error {
	if generation == 0 {
		return nil
	}
	_, err := r.q.ExecContext(ctx, `INSERT INTO postrider_repair (pipe, lane, generation) VALUES (?, ?, ?)
		ON CONFLICT (pipe, lane) DO UPDATE SET generation = max(generation, excluded.generation)`, r.Pipe, r.lane, generation)
	return err
}

// hold pauses or resumes a key or a lane.
func (r *request) hold(ctx context.Context) error {
	query, args := `INSERT INTO postrider_hold (pipe, lane, key, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`, []any{r.Pipe, r.lane, r.key, r.began}
	if r.kind == string(store.ActResume) {
		query, args = `DELETE FROM postrider_hold WHERE pipe = ? AND lane = ? AND key = ?`, args[:3]
	}
	res, err := r.q.ExecContext(ctx, query, args...)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return err
	}
	result := ops.ResultDone
	if n == 0 {
		result = ops.ResultUnchanged
	}
	return r.end(ctx, result, nil)
}

// end ends a request, with an entry in the journal.
func (r *request) end(ctx context.Context, result string, count *int64) error {
	_, err := r.q.ExecContext(ctx, `UPDATE postrider_request SET done_at = ?, result = ? WHERE id = ?`, r.began, result, r.id)
	if err != nil {
		return err
	}
	e := &ops.JournalEntry{
		Actor: r.actor, Act: string(KindOf(r.kind)), Pipe: r.Pipe, Lane: &r.lane, Key: r.key, Reason: r.reason, Result: result, Count: count, Ask: r.ask,
	}
	if !r.upto.Valid { // of an order it is where the last page ended
		e.Seq = r.seq
	}
	_, err = r.Note(ctx, r.q, e)
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
