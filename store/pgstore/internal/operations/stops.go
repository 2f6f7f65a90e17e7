package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/journal"
)

// StoppedSQL lists the stopped destinations of pipe $1.
const StoppedSQL = `SELECT key FROM {{schema}}.hold WHERE pipe = $1 AND lane = -1 ORDER BY key`

const stopListSQL = `SELECT f.key, f.at, coalesce(a.actor, ''), coalesce(a.reason, '') FROM {{schema}}.hold f
LEFT JOIN {{schema}}.audit a ON a.id = f.ask WHERE f.pipe = $1 AND f.lane = -1 ORDER BY f.key`

// Stops has the stopped destinations of one pipe. It is safe for concurrent use.
type Stops struct {
	*db.Outbox
	journal *journal.Journal
	sql     stopTexts
}

// stopTexts are the statements of one schema, made once.
type stopTexts struct {
	stopped  string
	stopList string
	stopPipe string
	stopSet  string
	stopEnd  string
}

// NewStops returns the stopped destinations of a pipe. It does no I/O.
func NewStops(o *db.Outbox) *Stops {
	s := &Stops{Outbox: o, journal: journal.New(o)}
	s.sql.stopSQL(o.Render)
	return s
}

// stopSQL returns the statements of ops.Stops. A stopped destination is a row of the table hold
// in the lane -1, which does not exist: all pauses are in one table, and older relays, which ask
// for existing lanes, ignore the row.
func (st *stopTexts) stopSQL(q func(string) string) {
	st.stopped = q(StoppedSQL)
	st.stopList = q(stopListSQL)
	// Stops and resumes are serialised by the row of their pipe.
	st.stopPipe = q(`SELECT 1 FROM {{schema}}.pipe WHERE name = $1 FOR UPDATE`)
	st.stopSet = q(`INSERT INTO {{schema}}.hold (pipe, lane, key, ask) VALUES ($1, -1, $2, $3)`)
	st.stopEnd = q(`DELETE FROM {{schema}}.hold WHERE pipe = $1 AND lane = -1 AND key = $2`)
}

// Stops lists the stopped destinations of the store's pipe.
func (s *Stops) Stops(ctx context.Context) (stops []ops.Stop, err error) {
	if s.Bad != nil {
		return nil, s.Bad
	}
	err = s.Ask(ctx, func(rows pgx.Rows) (err error) {
		stops, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ops.Stop])
		return err
	}, s.sql.stopList, s.Pipe)
	if err != nil {
		return nil, s.Wrap("read which destinations are stopped", err)
	}
	return stops, nil
}

// SetStop stops or resumes a destination of the store's pipe.
func (s *Stops) SetStop(ctx context.Context, req store.SetStop) (changed bool, err error) {
	if s.Bad != nil {
		return false, s.Bad
	}
	doing := fmt.Sprintf("stop or resume destination %q", req.Destination)
	if req.Destination == "" {
		return false, fmt.Errorf("%s: %w: it has no name", doing, store.ErrNotFound)
	}
	err = s.LookingAnew(ctx, func(tx pgx.Tx) error {
		changed, err = s.setStop(ctx, tx, req)
		return err
	})
	if err != nil {
		return false, s.Wrap(doing, err)
	}
	return changed, nil
}

func (s *Stops) setStop(ctx context.Context, tx pgx.Tx, req store.SetStop) (bool, error) {
	if _, err := tx.Exec(ctx, db.NoRowSecurity); err != nil {
		return false, err
	}
	locked, err := tx.Exec(ctx, s.sql.stopPipe, s.Pipe)
	if err != nil {
		return false, err
	}
	if locked.RowsAffected() == 0 {
		return false, unknownPipe(s.Outbox, s.Pipe)
	}
	rows, err := tx.Query(ctx, s.sql.stopped, s.Pipe)
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
	id, err := s.journal.Write(ctx, tx, ops.JournalEntry{Actor: req.Actor, Act: act, Pipe: s.Pipe, Target: target, Reason: req.Reason})
	if err != nil {
		return false, err
	}
	if req.Resume {
		_, err = tx.Exec(ctx, s.sql.stopEnd, s.Pipe, req.Destination)
	} else {
		_, err = tx.Exec(ctx, s.sql.stopSet, s.Pipe, req.Destination, id)
	}
	return true, err
}
