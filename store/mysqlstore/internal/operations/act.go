// Package operations has what people do to the messages of one pipe: acts on records,
// pauses, orders, stopped destinations and the pipes themselves.
package operations

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// seePipes is the remedy of a look at a pipe that does not exist.
const seePipes = "check --pipe; `postrider pipe list` lists those that do"

// Acts are requests of people. It is safe for concurrent use.
type Acts struct{ *db.Outbox }

// Request stores an act for the owner of its lane, with its entry in the journal.
func (s Acts) Request(ctx context.Context, act store.Act) (id int64, err error) {
	err = s.Transact(ctx, "store a request", func(tx *sql.Tx) error {
		e := ops.JournalEntry{Actor: act.Actor, Act: string(act.Kind), Pipe: s.Pipe, Seq: act.Seq, Reason: act.Reason, Result: db.ResultAsked, Lane: new(store.Lane)}
		switch act.Kind {
		case store.ActRetry, store.ActDiscard:
			err = tx.QueryRowContext(ctx, "SELECT lane, `key` FROM postrider_parked WHERE pipe = ? AND seq = ?", s.Pipe, act.Seq).Scan(e.Lane, &e.Key)
			if errors.Is(err, sql.ErrNoRows) {
				err = cmp.Or(s.Knows(ctx, tx, seePipes),
					fmt.Errorf("parked record %d of pipe %q: %w", act.Seq, s.Pipe, store.ErrNotFound))
			}
		case store.ActPause, store.ActResume:
			e.Seq, e.Key = 0, act.Key
			*e.Lane, err = s.lane(ctx, tx, act)
		default:
			err = fmt.Errorf("act %q: %w", act.Kind, ops.ErrUnsupported)
		}
		if err != nil {
			return err
		}
		key := "" // of one record it is in the record
		if e.Seq == 0 {
			key = e.Key
		}
		res, err := tx.ExecContext(ctx, "INSERT INTO postrider_act (pipe, lane, seq, `key`, kind, actor, reason, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, "+db.Now+`)`,
			s.Pipe, *e.Lane, e.Seq, []byte(key), string(act.Kind), act.Actor, act.Reason)
		if err != nil {
			return err
		}
		if id, err = res.LastInsertId(); err != nil {
			return err
		}
		_, err = s.Note(ctx, tx, &e, sql.NullInt64{Int64: id, Valid: true})
		return err
	})
	return id, err
}

// lane is that of a pause: of its key, as the outbox computes it, or the lane itself.
func (s Acts) lane(ctx context.Context, q db.Querier, act store.Act) (store.Lane, error) {
	var lanes uint32
	if err := q.QueryRowContext(ctx, `SELECT lanes FROM postrider_info`).Scan(&lanes); err != nil {
		return 0, err
	}
	if act.Key != "" {
		return store.Lane(crc32.ChecksumIEEE([]byte(act.Key)) % lanes), nil
	}
	if act.Lane < 0 || int64(act.Lane) >= int64(lanes) {
		return 0, fmt.Errorf("lane %d of pipe %q: %w", act.Lane, s.Pipe, store.ErrNotFound)
	}
	return act.Lane, nil
}

// States reports what became of requests.
func (s Acts) States(ctx context.Context, ids ...int64) ([]ops.ActState, error) {
	var acts []ops.ActState
	for _, id := range ids {
		a := ops.ActState{ID: id}
		err := s.DB.QueryRowContext(ctx, `SELECT lane, done_at IS NOT NULL, CASE WHEN done_at IS NULL THEN '' ELSE result END
			FROM postrider_act WHERE pipe = ? AND id = ?`, s.Pipe, id).Scan(&a.Lane, &a.Done, &a.Result)
		if errors.Is(err, sql.ErrNoRows) {
			err = fmt.Errorf("request %d of pipe %q: %w", id, s.Pipe, store.ErrNotFound)
		}
		if err != nil {
			return nil, s.Wrap(fmt.Sprintf("look at request %d", id), err)
		}
		acts = append(acts, a)
	}
	return acts, nil
}

// Holds lists the paused keys and lanes of the pipe.
func (s Acts) Holds(ctx context.Context, q db.Querier) ([]ops.Hold, error) {
	return s.holds(ctx, q, "")
}

// holds lists those on a condition.
func (s Acts) holds(ctx context.Context, q db.Querier, and string, args ...any) (holds []ops.Hold, err error) {
	rows, err := q.QueryContext(ctx, "SELECT lane, `key`, at FROM postrider_hold WHERE pipe = ?"+and+" ORDER BY lane, `key`", append([]any{s.Pipe}, args...)...)
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
	return holds, errors.Join(rows.Err(), rows.Close())
}
