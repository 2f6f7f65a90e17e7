package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// stopSQL holds the texts of ops.Stops. A destination that is stopped is a row of
// the table hold in no lane, -1: what people have paused is in one place, and
// relays of versions that do not know of it ask for the lanes that there are.
func (st *statements) stopSQL(q func(string) string) {
	st.stopped = q(`SELECT key FROM {{schema}}.hold WHERE pipe = $1 AND lane = -1 ORDER BY key`)
	st.stopList = q(`SELECT f.key, f.at, coalesce(a.actor, ''), coalesce(a.reason, '') FROM {{schema}}.hold f
LEFT JOIN {{schema}}.audit a ON a.id = f.ask WHERE f.pipe = $1 AND f.lane = -1 ORDER BY f.key`)
	// Those who stop and resume take turns at the row of their pipe.
	st.stopPipe = q(`SELECT 1 FROM {{schema}}.pipe WHERE name = $1 FOR UPDATE`)
	st.stopSet = q(`INSERT INTO {{schema}}.hold (pipe, lane, key, ask) VALUES ($1, -1, $2, $3)`)
	st.stopEnd = q(`DELETE FROM {{schema}}.hold WHERE pipe = $1 AND lane = -1 AND key = $2`)
}

// Stops lists the destinations of the store's pipe that nothing is sent to.
func (s *Store) Stops(ctx context.Context) (stops []ops.Stop, err error) {
	if s.box.Bad != nil {
		return nil, s.box.Bad
	}
	err = s.box.Ask(ctx, func(rows pgx.Rows) (err error) {
		stops, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ops.Stop])
		return err
	}, s.sql.stopList, s.opts.Pipe)
	if err != nil {
		return nil, s.box.Wrap("read which destinations are stopped", err)
	}
	return stops, nil
}

// SetStop stops a destination of the store's pipe, or lets it go on.
func (s *Store) SetStop(ctx context.Context, req store.SetStop) (changed bool, err error) {
	if s.box.Bad != nil {
		return false, s.box.Bad
	}
	doing := fmt.Sprintf("stop or resume destination %q", req.Destination)
	if req.Destination == "" {
		return false, fmt.Errorf("%s: %w: it has no name", doing, store.ErrNotFound)
	}
	err = s.box.LookingAnew(ctx, func(tx pgx.Tx) error {
		changed, err = s.setStop(ctx, tx, req)
		return err
	})
	if err != nil {
		return false, s.box.Wrap(doing, err)
	}
	return changed, nil
}

func (s *Store) setStop(ctx context.Context, tx pgx.Tx, req store.SetStop) (bool, error) {
	if _, err := tx.Exec(ctx, db.NoRowSecurity); err != nil {
		return false, err
	}
	locked, err := tx.Exec(ctx, s.sql.stopPipe, s.opts.Pipe)
	if err != nil {
		return false, err
	}
	if locked.RowsAffected() == 0 {
		return false, s.unknownPipe(s.opts.Pipe)
	}
	rows, err := tx.Query(ctx, s.sql.stopped, s.opts.Pipe)
	if err != nil {
		return false, err
	}
	stopped, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return false, err
	}
	if slices.Contains(stopped, req.Destination) != req.Resume {
		return false, nil
	}
	act := "endpoint stop"
	if req.Resume {
		act = "endpoint resume"
	}
	target, err := json.Marshal(map[string]string{"endpoint": req.Destination})
	if err != nil {
		return false, err
	}
	id, err := s.audit(ctx, tx, ops.JournalEntry{Actor: req.Actor, Act: act, Pipe: s.opts.Pipe, Target: target, Reason: req.Reason})
	if err != nil {
		return false, err
	}
	if req.Resume {
		_, err = tx.Exec(ctx, s.sql.stopEnd, s.opts.Pipe, req.Destination)
	} else {
		_, err = tx.Exec(ctx, s.sql.stopSet, s.opts.Pipe, req.Destination, id)
	}
	return true, err
}
