package sqlitestore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) (lost []store.Lane, err error) {
	if len(settlements) == 0 {
		return nil, nil
	}
	ordered := slices.SortedFunc(slices.Values(settlements), func(a, b store.Settlement) int { return cmp.Compare(a.Lane, b.Lane) })
	err = s.write(ctx, "settle", func(q querier) error {
		if err := s.assertIdentity(ctx, q); err != nil {
			return err
		}
		for i := range ordered {
			ok, err := s.settleLane(ctx, q, &ordered[i])
			if err != nil {
				return fmt.Errorf("lane %d: %w", ordered[i].Lane, err)
			}
			if !ok {
				lost = append(lost, ordered[i].Lane)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return lost, nil
}

// settleLane applies one settlement; false: the lane is lost.
func (s *Store) settleLane(ctx context.Context, q querier, st *store.Settlement) (bool, error) {
	var epoch, settledEpoch, pos int64
	var owner, settledBy string
	err := q.QueryRowContext(ctx, `SELECT epoch, owner, settled_by, settled_epoch, pos FROM postrider_progress WHERE pipe = ? AND lane = ?`,
		s.opts.Pipe, st.Lane).Scan(&epoch, &owner, &settledBy, &settledEpoch, &pos)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, err
	case settledBy == signature(st) && settledEpoch == st.Epoch:
		return true, nil // committed before, its answer was lost
	case owner != st.BootID || epoch != st.Epoch:
		return false, nil
	}
	if st.Position != nil {
		if pos, err = decode(st.Position); err != nil {
			return false, err
		}
	}
	_, err = q.ExecContext(ctx, `UPDATE postrider_progress SET epoch = epoch + 1, pos = ?, delivered = delivered + ?,
		settled_at = ?, settled_by = ?, settled_epoch = ? WHERE pipe = ? AND lane = ?`,
		pos, st.Delivered, micros(s.now()), signature(st), st.Epoch, s.opts.Pipe, st.Lane)
	if err != nil {
		return false, err
	}
	for i := range st.Park {
		if err := s.park(ctx, q, st.Lane, &st.Park[i]); err != nil {
			return false, fmt.Errorf("park record %d: %w", st.Park[i].Seq, err)
		}
	}
	for _, seq := range st.Unpark {
		_, err := q.ExecContext(ctx, `DELETE FROM postrider_parked WHERE pipe = ? AND lane = ? AND seq = ?`, s.opts.Pipe, st.Lane, seq)
		if err != nil {
			return false, fmt.Errorf("unpark record %d: %w", seq, err)
		}
	}
	for _, id := range st.Requests {
		if err := s.execute(ctx, q, st.Lane, id); err != nil {
			return false, fmt.Errorf("request %d: %w", id, err)
		}
	}
	return true, nil
}

// signature is whose settlement it is and what it says.
func signature(st *store.Settlement) string { return fmt.Sprintf("%s/%016x", st.BootID, st.Mark()) }

// park puts a record into the parked table or changes it there. Its generation
// and the time of its first failure stay.
func (s *Store) park(ctx context.Context, q querier, lane store.Lane, p *store.Park) error {
	m, now := &p.Message, micros(s.now())
	headers := "{}"
	if len(m.Headers) > 0 {
		text, err := json.Marshal(m.Headers)
		if err != nil {
			return err
		}
		headers = string(text)
	}
	var failed, notBefore any
	if p.State == store.Dead || p.State == store.Retry {
		failed = now
	}
	if !m.NotBefore.IsZero() {
		notBefore = micros(m.NotBefore)
	}
	due := micros(s.now())
	switch {
	case p.State == store.Scheduled && !m.NotBefore.IsZero():
		due = micros(m.NotBefore)
	case p.State == store.Retry || p.State == store.Scheduled:
		due = s.after(p.DueIn)
	}
	captures := p.Captures && m.Key != "" && (p.State == store.Retry || p.State == store.Dead)
	payload := m.Payload
	if payload == nil {
		payload = []byte{}
	}
	_, err := q.ExecContext(ctx, `INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error,
			first_failed, last_attempt, id, topic, key, type, payload, content_type, headers, version, schema_version, not_before, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (pipe, seq) DO UPDATE SET state = excluded.state, captures = excluded.captures, due_at = excluded.due_at,
			attempts = excluded.attempts, class = excluded.class, code = excluded.code, error = excluded.error,
			first_failed = coalesce(first_failed, excluded.first_failed), last_attempt = coalesce(excluded.last_attempt, last_attempt)`,
		s.opts.Pipe, p.Seq, lane, p.State.String(), captures, due, p.Attempts, p.Class, p.Code, p.Error,
		failed, failed, m.ID, m.Topic, m.Key, m.Type, payload, m.ContentType, headers, m.Version, m.SchemaVersion, notBefore, micros(m.Time))
	return err
}

// execute does what a person asked for, once.
func (s *Store) execute(ctx context.Context, q querier, lane store.Lane, id int64) error {
	var kind store.ActKind
	var seq int64
	err := q.QueryRowContext(ctx, `SELECT kind, seq FROM postrider_request WHERE id = ? AND pipe = ? AND lane = ? AND done_at IS NULL`,
		id, s.opts.Pipe, lane).Scan(&kind, &seq)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	now := micros(s.now())
	query, args := `DELETE FROM postrider_parked WHERE pipe = ? AND lane = ? AND seq = ?`, []any{s.opts.Pipe, lane, seq}
	if kind == store.ActRetry {
		// What waits behind a head, or for its time, stays what it is.
		query = `UPDATE postrider_parked SET attempts = 0, generation = generation + 1, due_at = ?,
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
