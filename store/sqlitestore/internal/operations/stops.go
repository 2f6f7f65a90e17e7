package operations

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// Stops has the stopped destinations of one pipe. It is safe for concurrent use.
type Stops struct{ *db.Outbox }

// NewStops returns the stopped destinations of a pipe. It does no I/O.
func NewStops(o *db.Outbox) Stops { return Stops{o} }

// Stops implements ops.Stops.
func (s Stops) Stops(ctx context.Context) ([]ops.Stop, error) {
	stops, err := stopped(ctx, s.Outbox, s.DB)
	return stops, s.Wrap("read which destinations are stopped", err)
}

// Stopped names the stopped destinations of a pipe.
func Stopped(ctx context.Context, o *db.Outbox, q db.Querier) ([]string, error) {
	return db.List[string](ctx, q, `SELECT destination FROM postrider_stop WHERE pipe = ? ORDER BY destination`, o.Pipe)
}

func stopped(ctx context.Context, o *db.Outbox, q db.Querier) (stops []ops.Stop, err error) {
	rows, err := q.QueryContext(ctx, `SELECT destination, at, actor, reason FROM postrider_stop WHERE pipe = ? ORDER BY destination`, o.Pipe)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var stop ops.Stop
		var at sql.NullInt64
		if err := rows.Scan(&stop.Destination, &at, &stop.Actor, &stop.Reason); err != nil {
			return nil, err
		}
		stop.Since = db.Moment(at)
		stops = append(stops, stop)
	}
	return stops, errors.Join(rows.Err(), rows.Close())
}

// SetStop implements ops.Stops.
func (s Stops) SetStop(ctx context.Context, req store.SetStop) (changed bool, err error) {
	doing := fmt.Sprintf("stop or resume destination %q", req.Destination)
	if req.Destination == "" {
		return false, fmt.Errorf("%s: %w: it has no name", doing, store.ErrNotFound)
	}
	target, err := json.Marshal(map[string]string{"endpoint": req.Destination})
	if err != nil {
		return false, err
	}
	err = s.Write(ctx, doing, func(q db.Querier) error {
		if err := s.Knows(ctx, q, db.Pipes); err != nil {
			return err
		}
		act, query, args := "endpoint stop", `INSERT INTO postrider_stop (pipe, destination, at, actor, reason) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			[]any{s.Pipe, req.Destination, db.Micros(s.Now()), req.Actor, req.Reason}
		if req.Resume {
			act, query, args = "endpoint resume", `DELETE FROM postrider_stop WHERE pipe = ? AND destination = ?`, args[:2]
		}
		res, err := q.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err
		}
		changed = true
		_, err = s.Note(ctx, q, &ops.JournalEntry{Actor: req.Actor, Act: act, Pipe: s.Pipe, Target: target, Reason: req.Reason})
		return err
	})
	return changed && err == nil, err
}
