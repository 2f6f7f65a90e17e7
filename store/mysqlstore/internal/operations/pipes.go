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
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// Pipes are the pipes of one outbox. It is safe for concurrent use.
type Pipes struct {
	*db.Outbox
	// Holds counts what a pipe has not carried, all of it, and what it has parked.
	Holds func(ctx context.Context, pipe string) (ops.RemovedPipe, error)
}

var pipeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func unknownPipe(name string) error {
	return fmt.Errorf("pipe %q: %w: `postrider pipe list` lists them", name, store.ErrNoPipe)
}

// Pipes lists the pipes of the outbox.
func (s Pipes) Pipes(ctx context.Context) ([]ops.Pipe, error) {
	rows, err := s.DB.QueryContext(ctx, `SELECT p.name, p.filter, p.created_at, p.paused_at, p.paused_by, p.pause_reason,
		(SELECT COUNT(*) FROM postrider_relay r WHERE r.pipe = p.name AND r.alive_until > `+db.Now+` AND r.alive_until <= `+db.Now+` + 2 * r.ttl),
		GREATEST(COALESCE((SELECT MAX(seq) FROM postrider_outbox), 0) - (SELECT MIN(pos) FROM postrider_progress c WHERE c.pipe = p.name), 0)
		FROM postrider_pipe p WHERE EXISTS (SELECT 1 FROM postrider_progress c WHERE c.pipe = p.name) ORDER BY p.name`)
	if err != nil {
		return nil, s.Wrap("list pipes", err)
	}
	defer rows.Close()
	var found []ops.Pipe
	for rows.Next() {
		var p ops.Pipe
		var filter string
		var created, paused sql.NullInt64
		err := rows.Scan(&p.Name, &filter, &created, &paused, &p.PausedBy, &p.PausedFor, &p.Relays, &p.Behind)
		if err == nil {
			err = db.ParseFilter(filter, &p.Filter)
		}
		if err != nil {
			return nil, s.Wrap("list pipes", err)
		}
		p.CreatedAt, p.Paused, p.PausedAt = db.Moment(created), paused.Valid, db.Moment(paused)
		found = append(found, p)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, s.Wrap("list pipes", err)
	}
	for i := range found {
		p := &found[i]
		err := s.DB.QueryRowContext(ctx, `SELECT COUNT(*) FROM (SELECT 1 FROM postrider_parked FORCE INDEX (of_state) WHERE pipe = ? LIMIT ?) AS x`, p.Name, ops.ParkedCount).Scan(&p.Parked)
		if err != nil {
			return nil, s.Wrap("list pipes", err)
		}
		p.ParkedCapped = p.Parked >= ops.ParkedCount
	}
	return found, nil
}

// AddPipe makes a pipe. If the pipe begins at a time, AddPipe reads the whole outbox once and
// holds up retention during it.
func (s Pipes) AddPipe(ctx context.Context, req ops.AddPipe) (ops.Pipe, error) {
	if !pipeName.MatchString(req.Name) {
		return ops.Pipe{}, &store.UnusableError{
			What: fmt.Sprintf("%q is not a valid name for a pipe", req.Name),
			Fix:  "use letters, digits, dots, dashes and underscores, at most 63, beginning with a letter or digit",
		}
	}
	if err := req.Filter.Validate(); err != nil {
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
	if err := s.add(ctx, req, target); err != nil {
		return ops.Pipe{}, s.Wrap(fmt.Sprintf("add pipe %q", req.Name), err)
	}
	all, err := s.Pipes(ctx)
	if i := slices.IndexFunc(all, func(p ops.Pipe) bool { return p.Name == req.Name }); i >= 0 {
		return all[i], err
	}
	return ops.Pipe{Name: req.Name, Filter: req.Filter}, err
}

func (s Pipes) add(ctx context.Context, req ops.AddPipe, target []byte) error {
	conn, err := s.DB.Conn(ctx)
	if err != nil {
		return err
	}
	err = Begin(ctx, s.Outbox, conn, req, func() error {
		_, err := s.Note(ctx, conn, &ops.JournalEntry{Actor: req.Actor, Act: "pipe add", Pipe: req.Name, Target: target, Reason: req.Reason}, sql.NullInt64{})
		return err
	})
	return errors.Join(err, conn.Close())
}

// PausePipe pauses or resumes a pipe.
func (s Pipes) PausePipe(ctx context.Context, req ops.PausePipe) error {
	return s.Transact(ctx, fmt.Sprintf("pause pipe %q", req.Name), func(tx *sql.Tx) error {
		var name string
		err := tx.QueryRowContext(ctx, `SELECT name FROM postrider_pipe WHERE name = ? FOR UPDATE`, req.Name).Scan(&name)
		if errors.Is(err, sql.ErrNoRows) {
			return unknownPipe(req.Name)
		}
		if err != nil {
			return err
		}
		act, at, by, why := "pipe pause", db.Now, req.Actor, req.Reason
		if req.Resume {
			act, at, by, why = "pipe resume", "NULL", "", ""
		}
		if _, err := tx.ExecContext(ctx, `UPDATE postrider_pipe SET paused_at = `+at+`, paused_by = ?, pause_reason = ? WHERE name = ?`, by, why, req.Name); err != nil {
			return err
		}
		_, err = s.Note(ctx, tx, &ops.JournalEntry{Actor: req.Actor, Act: act, Pipe: req.Name, Reason: req.Reason}, sql.NullInt64{})
		return err
	})
}

// RemovePipe removes a pipe and all its rows. A settlement that comes later finds no
// lane, and a relay no pipe.
func (s Pipes) RemovePipe(ctx context.Context, req ops.RemovePipe) (gone ops.RemovedPipe, err error) {
	if gone, err = s.Holds(ctx, req.Name); err != nil {
		return gone, err
	}
	if gone.Pending+gone.Parked > max(req.Forfeit, 0) {
		return gone, &ops.ForfeitError{Pipe: req.Name, Allowed: req.Forfeit, RemovedPipe: gone}
	}
	err = s.Transact(ctx, fmt.Sprintf("remove pipe %q", req.Name), func(tx *sql.Tx) error {
		lanes, err := db.List[int64](ctx, tx, `SELECT lane FROM postrider_progress WHERE pipe = ? ORDER BY lane FOR UPDATE`, req.Name)
		if err != nil {
			return err
		}
		if len(lanes) == 0 {
			return unknownPipe(req.Name)
		}
		if err := drop(ctx, tx, req.Name); err != nil {
			return err
		}
		count := gone.Pending + gone.Parked
		_, err = s.Note(ctx, tx, &ops.JournalEntry{
			Actor: req.Actor, Act: "pipe remove", Pipe: req.Name, Reason: req.Reason, Count: &count,
			Target: fmt.Appendf(nil, `{"pending": %d, "parked": %d}`, gone.Pending, gone.Parked),
		}, sql.NullInt64{})
		return err
	})
	return gone, err
}
