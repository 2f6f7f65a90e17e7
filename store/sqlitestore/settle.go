package sqlitestore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
	"github.com/postrider/postrider/store/sqlitestore/internal/operations"
)

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) (lost []store.Lane, err error) {
	if len(settlements) == 0 {
		return nil, nil
	}
	ordered := slices.SortedFunc(slices.Values(settlements), func(a, b store.Settlement) int { return cmp.Compare(a.Lane, b.Lane) })
	err = s.box.Write(ctx, "settle", func(q db.Querier) error {
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
func (s *Store) settleLane(ctx context.Context, q db.Querier, st *store.Settlement) (bool, error) {
	var epoch, settledEpoch, was, at int64
	var owner, settledBy string
	err := q.QueryRowContext(ctx, `SELECT epoch, owner, settled_by, settled_epoch, pos, pos_at FROM postrider_progress WHERE pipe = ? AND lane = ?`,
		s.box.Pipe, st.Lane).Scan(&epoch, &owner, &settledBy, &settledEpoch, &was, &at)
	pos := was
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
	now := db.Micros(s.box.Now())
	if pos > was {
		if err := s.note(ctx, q, st.Lane, was, at, now); err != nil {
			return false, err
		}
		at = now
	}
	_, err = q.ExecContext(ctx, `UPDATE postrider_progress SET epoch = epoch + 1, pos = ?, pos_at = ?, delivered = delivered + ?,
		settled_at = ?, settled_by = ?, settled_epoch = ? WHERE pipe = ? AND lane = ?`,
		pos, at, st.Delivered, now, signature(st), st.Epoch, s.box.Pipe, st.Lane)
	if err != nil {
		return false, err
	}
	for i := range st.Park {
		if err := s.park(ctx, q, st.Lane, &st.Park[i]); err != nil {
			return false, fmt.Errorf("park record %d: %w", st.Park[i].Seq, err)
		}
	}
	for _, seq := range st.Unpark {
		if err := operations.Unpark(ctx, s.box, q, st.Lane, seq, &now); err != nil {
			return false, fmt.Errorf("unpark record %d: %w", seq, err)
		}
	}
	for _, id := range st.Requests {
		if err := operations.Execute(ctx, s.box, q, st.Lane, id); err != nil {
			return false, fmt.Errorf("request %d: %w", id, err)
		}
	}
	return true, nil
}

// note keeps where a lane was and since when, once its minute is over: a row a minute
// tells when messages were settled, however many settlements there are.
func (s *Store) note(ctx context.Context, q db.Querier, lane store.Lane, pos, at, now int64) error {
	minute := time.Minute.Microseconds()
	if pos == 0 || at > 0 && at/minute == now/minute {
		return nil
	}
	_, err := q.ExecContext(ctx, `INSERT INTO postrider_settled (pipe, lane, pos, at, exact) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		s.box.Pipe, lane, pos, at, at > 0)
	return err
}

// signature is whose settlement it is and what it says.
func signature(st *store.Settlement) string { return fmt.Sprintf("%s/%016x", st.BootID, st.Mark()) }

// settledBy reports whether a signature is that of boot.
func settledBy(signature, boot string) bool {
	return strings.LastIndexByte(signature, '/') == len(boot) && strings.HasPrefix(signature, boot)
}

// park puts a record into the parked table or changes it there. Its generation
// and the time of its first failure stay.
func (s *Store) park(ctx context.Context, q db.Querier, lane store.Lane, p *store.Park) error {
	m, now := &p.Message, db.Micros(s.box.Now())
	headers := "{}"
	if len(m.Headers) > 0 {
		text, err := json.Marshal(m.Headers)
		if err != nil {
			return err
		}
		headers = string(text)
	}
	var failed, notBefore any
	history := "[]"
	if p.State == store.Dead || p.State == store.Retry {
		failed = now
		text, err := json.Marshal([]db.Attempt{{At: now, Attempt: p.Attempts, Class: p.Class, Code: p.Code, Error: p.Error}})
		if err != nil {
			return err
		}
		if p.Class != "" {
			history = string(text)
		}
	}
	if !m.NotBefore.IsZero() {
		notBefore = db.Micros(m.NotBefore)
	}
	due := db.Micros(s.box.Now())
	switch {
	case p.State == store.Scheduled && !m.NotBefore.IsZero():
		due = db.Micros(m.NotBefore)
	case p.State == store.Retry || p.State == store.Scheduled:
		due = s.box.After(p.DueIn)
	}
	captures := p.Captures && m.Key != "" && (p.State == store.Retry || p.State == store.Dead)
	payload := m.Payload
	if payload == nil {
		payload = []byte{}
	}
	_, err := q.ExecContext(ctx, `INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error,
			first_failed, last_attempt, history, id, topic, key, type, payload, content_type, headers, version, schema_version, not_before, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (pipe, seq) DO UPDATE SET state = excluded.state, captures = excluded.captures, due_at = excluded.due_at,
			attempts = excluded.attempts, class = excluded.class, code = excluded.code, error = excluded.error,
			history = CASE WHEN excluded.history = '[]' THEN history
				ELSE json_insert(CASE WHEN json_array_length(history) < 8 THEN history ELSE json_remove(history, '$[0]') END,
					'$[#]', json_extract(excluded.history, '$[0]')) END,
			first_failed = coalesce(first_failed, excluded.first_failed), last_attempt = coalesce(excluded.last_attempt, last_attempt)`,
		s.box.Pipe, p.Seq, lane, p.State.String(), captures, due, p.Attempts, p.Class, p.Code, p.Error,
		failed, failed, history, m.ID, m.Topic, m.Key, m.Type, payload, m.ContentType, headers, m.Version, m.SchemaVersion, notBefore, db.Micros(m.Time))
	return err
}
