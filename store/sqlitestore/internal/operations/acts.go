package operations

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// Request implements ops.Admin.
func (s *Admin) Request(ctx context.Context, act store.Act) (id int64, err error) {
	err = s.Write(ctx, "request", func(q db.Querier) error {
		e := ops.JournalEntry{Actor: act.Actor, Act: string(act.Kind), Pipe: s.Pipe, Seq: act.Seq, Reason: act.Reason, Result: db.ResultAsked, Lane: new(store.Lane)}
		key := "" // of one record it is in the record
		switch act.Kind {
		case store.ActRetry, store.ActDiscard:
			err = q.QueryRowContext(ctx, `SELECT lane, key FROM postrider_parked WHERE pipe = ? AND seq = ?`, s.Pipe, act.Seq).Scan(e.Lane, &e.Key)
			if errors.Is(err, sql.ErrNoRows) {
				err = cmp.Or(s.Knows(ctx, q, db.Pipes), fmt.Errorf("parked record %d of pipe %q: %w", act.Seq, s.Pipe, store.ErrNotFound))
			}
		case store.ActPause, store.ActResume:
			e.Seq, e.Key, key = 0, act.Key, act.Key
			*e.Lane, err = s.laneOf(ctx, q, act)
		case store.ActSkip, store.ActReplay:
			err = fmt.Errorf("act %q on one record: %w: use an order", act.Kind, ops.ErrUnsupported)
		default:
			err = fmt.Errorf("act %q: %w", act.Kind, ops.ErrUnsupported)
		}
		if err != nil {
			return err
		}
		ask, err := s.Note(ctx, q, &e)
		if err != nil {
			return err
		}
		return q.QueryRowContext(ctx, `INSERT INTO postrider_request (pipe, lane, seq, key, kind, actor, reason, created_at, ask)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id`,
			s.Pipe, *e.Lane, e.Seq, key, string(act.Kind), act.Actor, act.Reason, db.Micros(s.Now()), ask).Scan(&id)
	})
	return id, err
}

// laneOf is the lane of a pause: that of its key, or the lane itself.
func (s *Admin) laneOf(ctx context.Context, q db.Querier, act store.Act) (store.Lane, error) {
	if err := s.Knows(ctx, q, db.Pipes); err != nil {
		return 0, err
	}
	var g store.Grant
	if err := s.Info(ctx, q, &g); err != nil {
		return 0, err
	}
	switch {
	case act.Key != "":
		return s.lane(act.Key, "", g.Total), nil
	case act.Lane < 0 || int(act.Lane) >= g.Total:
		return 0, fmt.Errorf("lane %d of pipe %q: %w", act.Lane, s.Pipe, store.ErrNotFound)
	}
	return act.Lane, nil
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

// holds lists what people have paused in the pipe, on a further condition.
func (s *Admin) holds(ctx context.Context, q db.Querier, and string, args ...any) (holds []ops.Hold, err error) {
	rows, err := q.QueryContext(ctx, `SELECT lane, key, at FROM postrider_hold WHERE pipe = ?`+and+` ORDER BY lane, key`, append([]any{s.Pipe}, args...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var h ops.Hold
		var at sql.NullInt64
		if err := rows.Scan(&h.Lane, &h.Key, &at); err != nil {
			return nil, err
		}
		h.Since = db.Moment(at)
		holds = append(holds, h)
	}
	return holds, errors.Join(rows.Err(), rows.Close()) // the next query may need its connection
}
