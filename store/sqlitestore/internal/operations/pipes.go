package operations

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// Pipes are the pipes of one outbox. It is safe for concurrent use.
type Pipes struct {
	*db.Outbox
	// status counts all that a pipe has not carried.
	status func(ctx context.Context, pipe string) (ops.Status, error)
}

// NewPipes returns the pipes of an outbox. status is that of a pipe, and counts to the end. It
// does no I/O.
func NewPipes(o *db.Outbox, status func(ctx context.Context, pipe string) (ops.Status, error)) *Pipes {
	return &Pipes{o, status}
}

var pipeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func unknownPipe(name string) error {
	return fmt.Errorf("pipe %q: %w: `postrider pipe list` lists them", name, store.ErrNoPipe)
}

// Pipes implements ops.Pipes.
func (s *Pipes) Pipes(ctx context.Context) ([]ops.Pipe, error) {
	const doing = "list pipes"
	newest, err := s.Newest(ctx, s.DB)
	if err != nil {
		return nil, err
	}
	now := db.Micros(s.Now())
	rows, err := s.DB.QueryContext(ctx, `SELECT p.name, p.filter, p.created_at, p.paused_at, p.paused_by, p.pause_reason,
		(SELECT count(*) FROM postrider_relay r WHERE r.pipe = p.name AND r.alive_until > ?1 AND r.alive_until <= ?1 + 2 * r.ttl),
		coalesce(max(?2 - (SELECT min(c.pos) FROM postrider_progress c WHERE c.pipe = p.name AND EXISTS (SELECT 1 FROM postrider_outbox o WHERE o.lane = c.lane AND o.seq > c.pos)), 0), 0),
		(SELECT count(*) FROM (SELECT 1 FROM postrider_parked k WHERE k.pipe = p.name LIMIT ?3))
		FROM postrider_pipe p WHERE EXISTS (SELECT 1 FROM postrider_progress c WHERE c.pipe = p.name) ORDER BY p.name`, now, newest, ops.ParkedCount)
	if err != nil {
		return nil, s.Wrap(doing, err)
	}
	defer rows.Close()
	var found []ops.Pipe
	for rows.Next() {
		var p ops.Pipe
		var filter string
		var created, paused sql.NullInt64
		err := rows.Scan(&p.Name, &filter, &created, &paused, &p.PausedBy, &p.PausedFor, &p.Relays, &p.Behind, &p.Parked)
		if err == nil {
			p.Filter, err = db.ParseFilter(filter)
		}
		if err != nil {
			return nil, s.Wrap(doing, err)
		}
		p.CreatedAt, p.Paused, p.PausedAt, p.ParkedCapped = db.Moment(created), paused.Valid, db.Moment(paused), p.Parked >= ops.ParkedCount
		found = append(found, p)
	}
	return found, s.Wrap(doing, errors.Join(rows.Err(), rows.Close()))
}

// Begin makes the pipe, behind a number. Epochs of an earlier pipe of that name, which a relay
// may still have in its hands, are lower.
func Begin(ctx context.Context, o *db.Outbox, q db.Querier, filter string, behind int64) error {
	now := db.Micros(o.Now())
	_, err := q.ExecContext(ctx, `INSERT INTO postrider_pipe (name, filter, created_at) VALUES (?, ?, ?)
		ON CONFLICT (name) DO UPDATE SET filter = excluded.filter, created_at = excluded.created_at, paused_at = NULL`, o.Pipe, filter, now)
	if err != nil {
		return err
	}
	_, err = q.ExecContext(ctx, `INSERT INTO postrider_progress (pipe, lane, epoch, pos)
		WITH RECURSIVE n (lane) AS (SELECT 0 UNION ALL SELECT lane + 1 FROM n WHERE lane + 1 < (SELECT lanes FROM postrider_info))
		SELECT ?, lane, ?, ? FROM n`, o.Pipe, now, behind)
	return err
}

// AddPipe implements ops.Pipes. One that begins at a time reads the whole outbox once, beside
// writers.
func (s *Pipes) AddPipe(ctx context.Context, req ops.AddPipe) (ops.Pipe, error) {
	doing := fmt.Sprintf("add pipe %q", req.Name)
	if !pipeName.MatchString(req.Name) {
		return ops.Pipe{}, &store.UnusableError{
			What: fmt.Sprintf("%q is not a valid name for a pipe", req.Name),
			Fix:  "use letters, digits, dots, dashes and underscores, at most 63, beginning with a letter or digit",
		}
	}
	if err := req.Filter.Validate(); err != nil {
		return ops.Pipe{}, err
	}
	filter, err := json.Marshal(req.Filter)
	if err != nil {
		return ops.Pipe{}, err
	}
	target, err := json.Marshal(struct {
		From   string       `json:"from"`
		Time   time.Time    `json:"time,omitzero"`
		Filter store.Filter `json:"filter,omitzero"`
	}{req.From.String(), req.Time, req.Filter})
	if err != nil {
		return ops.Pipe{}, err
	}
	start, err := s.start(ctx, req)
	if err != nil {
		return ops.Pipe{}, s.Wrap(doing, err)
	}
	of := &db.Outbox{DB: s.DB, Pipe: req.Name, Now: s.Now}
	err = s.Write(ctx, doing, func(q db.Querier) error {
		err := of.Knows(ctx, q, "")
		switch {
		case err == nil:
			return fmt.Errorf("pipe %q: %w: choose another name, or remove it first", req.Name, ops.ErrPipeExists)
		case !errors.Is(err, store.ErrNoPipe):
			return err
		case req.From == ops.FromNow:
			if start, err = s.Newest(ctx, q); err != nil {
				return err
			}
		}
		if err := Begin(ctx, of, q, string(filter), start); err != nil {
			return err
		}
		_, err = s.Note(ctx, q, &ops.JournalEntry{Actor: req.Actor, Act: "pipe add", Pipe: req.Name, Target: target, Reason: req.Reason})
		return err
	})
	if err != nil {
		return ops.Pipe{}, err
	}
	all, err := s.Pipes(ctx)
	if i := slices.IndexFunc(all, func(p ops.Pipe) bool { return p.Name == req.Name }); i >= 0 {
		return all[i], err
	}
	return ops.Pipe{Name: req.Name, Filter: req.Filter}, err
}

// start is the number behind which a pipe begins that begins in the past: what is enqueued
// meanwhile has higher numbers, and belongs to the pipe.
func (s *Pipes) start(ctx context.Context, req ops.AddPipe) (behind int64, err error) {
	if req.From != ops.FromTime {
		return 0, nil
	}
	newest, err := s.Newest(ctx, s.DB)
	if err != nil {
		return 0, err
	}
	err = s.DB.QueryRowContext(ctx, `SELECT coalesce(min(seq) - 1, ?1) FROM postrider_outbox WHERE created_at >= ?2 AND seq <= ?1`, newest, db.Micros(req.Time)).Scan(&behind)
	return behind, err
}

// PausePipe implements ops.Pipes.
func (s *Pipes) PausePipe(ctx context.Context, req ops.PausePipe) error {
	act, at, by, why := "pipe pause", sql.NullInt64{Int64: db.Micros(s.Now()), Valid: true}, req.Actor, req.Reason
	if req.Resume {
		act, at, by, why = "pipe resume", sql.NullInt64{}, "", ""
	}
	return s.Write(ctx, act, func(q db.Querier) error {
		res, err := q.ExecContext(ctx, `UPDATE postrider_pipe SET paused_at = ?, paused_by = ?, pause_reason = ? WHERE name = ?`, at, by, why, req.Name)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return unknownPipe(req.Name)
		}
		_, err = s.Note(ctx, q, &ops.JournalEntry{Actor: req.Actor, Act: act, Pipe: req.Name, Reason: req.Reason})
		return err
	})
}

// RemovePipe implements ops.Pipes. A settlement that comes later finds no lane, and a relay no
// pipe.
func (s *Pipes) RemovePipe(ctx context.Context, req ops.RemovePipe) (gone ops.RemovedPipe, err error) {
	st, err := s.status(ctx, req.Name)
	if err != nil {
		return gone, err
	}
	gone.Pending = st.Pending
	for state, n := range st.Parked {
		if gone.Parked += n; state != store.Dead.String() { // counted as pending too
			gone.Pending -= n
		}
	}
	if gone.Pending+gone.Parked > max(req.Forfeit, 0) {
		return gone, &ops.ForfeitError{Pipe: req.Name, Allowed: req.Forfeit, RemovedPipe: gone}
	}
	count := gone.Pending + gone.Parked
	return gone, s.Write(ctx, fmt.Sprintf("remove pipe %q", req.Name), func(q db.Querier) error {
		res, err := q.ExecContext(ctx, `DELETE FROM postrider_progress WHERE pipe = ?`, req.Name)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return unknownPipe(req.Name)
		}
		for _, table := range []string{"relay", "parked", "request", "hold", "stop", "repair", "settled", "unparked", "sample"} {
			if _, err := q.ExecContext(ctx, `DELETE FROM postrider_`+table+` WHERE pipe = ?`, req.Name); err != nil {
				return err
			}
		}
		if _, err := q.ExecContext(ctx, `DELETE FROM postrider_pipe WHERE name = ?`, req.Name); err != nil {
			return err
		}
		_, err = s.Note(ctx, q, &ops.JournalEntry{
			Actor: req.Actor, Act: "pipe remove", Pipe: req.Name, Reason: req.Reason, Count: &count,
			Target: fmt.Appendf(nil, `{"pending": %d, "parked": %d}`, gone.Pending, gone.Parked),
		})
		return err
	})
}
