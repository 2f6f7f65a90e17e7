package operations

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// Stops has the stopped destinations of one pipe. It is safe for concurrent use.
type Stops struct{ *db.Outbox }

// Stopped lists the stopped destinations by name.
func Stopped(ctx context.Context, o *db.Outbox, q db.Querier) ([]string, error) {
	return db.List[string](ctx, q, `SELECT destination FROM postrider_stop WHERE pipe = ? ORDER BY destination`, o.Pipe)
}

// Stops lists the stopped destinations of the pipe.
func (s Stops) Stops(ctx context.Context) ([]ops.Stop, error) {
	stops, err := s.List(ctx, s.DB)
	return stops, s.Wrap("read which destinations are stopped", err)
}

// List reads the stopped destinations in a transaction.
func (s Stops) List(ctx context.Context, q db.Querier) (stops []ops.Stop, err error) {
	rows, err := q.QueryContext(ctx, `SELECT destination, at, actor, reason FROM postrider_stop WHERE pipe = ? ORDER BY destination`, s.Pipe)
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

// SetStop stops or resumes a destination of the pipe.
func (s Stops) SetStop(ctx context.Context, req store.SetStop) (changed bool, err error) {
	doing := fmt.Sprintf("stop or resume destination %q", req.Destination)
	switch {
	case req.Destination == "":
		return false, fmt.Errorf("%s: %w: it has no name", doing, store.ErrNotFound)
	case len(req.Destination) > 255:
		return false, &store.UnusableError{What: fmt.Sprintf("the name of a destination has %d bytes", len(req.Destination)), Fix: "use at most 255"}
	}
	target, err := json.Marshal(map[string]string{"endpoint": req.Destination})
	if err != nil {
		return false, err
	}
	err = s.Transact(ctx, doing, func(tx *sql.Tx) error {
		changed, err = s.setStop(ctx, tx, req, target)
		return err
	})
	return changed && err == nil, err
}

func (s Stops) setStop(ctx context.Context, tx *sql.Tx, req store.SetStop, target []byte) (bool, error) {
	// Stops and resumes are serialised by the row of their pipe.
	var name string
	err := tx.QueryRowContext(ctx, `SELECT name FROM postrider_pipe WHERE name = ? FOR UPDATE`, s.Pipe).Scan(&name)
	if errors.Is(err, sql.ErrNoRows) {
		return false, unknownPipe(s.Pipe)
	}
	if err != nil {
		return false, err
	}
	act, query, args := "endpoint stop", `INSERT INTO postrider_stop (pipe, destination, at, actor, reason) SELECT x.pipe, x.destination, `+db.Now+`, x.actor, x.reason
		FROM (SELECT ? AS pipe, ? AS destination, ? AS actor, ? AS reason) AS x
		WHERE NOT EXISTS (SELECT 1 FROM postrider_stop s WHERE s.pipe = x.pipe COLLATE utf8mb4_bin AND s.destination = x.destination)`,
		[]any{s.Pipe, []byte(req.Destination), req.Actor, req.Reason}
	if req.Resume {
		act, query, args = "endpoint resume", `DELETE FROM postrider_stop WHERE pipe = ? AND destination = ?`, []any{s.Pipe, []byte(req.Destination)}
	}
	res, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	_, err = s.Note(ctx, tx, &ops.JournalEntry{Actor: req.Actor, Act: act, Pipe: s.Pipe, Target: target, Reason: req.Reason}, sql.NullInt64{})
	return true, err
}
