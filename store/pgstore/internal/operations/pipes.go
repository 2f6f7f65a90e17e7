package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/xids"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/journal"
)

// Pipes are the pipes of one outbox. It is safe for concurrent use.
type Pipes struct {
	*db.Outbox
	journal *journal.Journal
	sql     pipeTexts
}

// pipeTexts are the statements of one schema, made once.
type pipeTexts struct {
	pipeLock     string
	pipeFind     string
	pipeList     string
	pipeEnd      string
	pipeSince    string
	pipeAdd      string
	pipePause    string
	pipeHolds    string
	progressLock string
	pipeDrop     []string
}

// NewPipes returns the pipes of an outbox. It does no I/O.
func NewPipes(o *db.Outbox) *Pipes {
	s := &Pipes{Outbox: o, journal: journal.New(o)}
	s.sql.pipesSQL(o.Render)
	return s
}

var pipeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func checkPipeName(name string) error {
	if pipeName.MatchString(name) {
		return nil
	}
	return &store.UnusableError{
		What: fmt.Sprintf("%q is not a valid name for a pipe", name),
		Fix:  "use letters, digits, dots, dashes and underscores, at most 63, beginning with a letter or digit",
	}
}

// Pipes lists the pipes of the outbox.
func (s *Pipes) Pipes(ctx context.Context) ([]ops.Pipe, error) {
	if s.Bad != nil {
		return nil, s.Bad
	}
	var found []ops.Pipe
	err := s.Ask(ctx, func(rows pgx.Rows) error {
		for rows.Next() {
			var text string
			var p ops.Pipe
			if err := rows.Scan(&text, &p.Relays, &p.Behind, &p.Parked); err != nil {
				return err
			}
			row, err := db.ParseRow(&text)
			if err != nil {
				return err
			}
			fill(row, &p)
			p.ParkedCapped = p.Parked >= ops.ParkedCount
			found = append(found, p)
		}
		return rows.Err()
	}, s.sql.pipeList, ops.ParkedCount)
	return found, s.Wrap("list pipes", err)
}

func fill(p *db.Row, to *ops.Pipe) {
	to.Name, to.Paused, to.PausedBy, to.PausedFor = p.Name, p.Paused, p.PausedBy, p.PauseReason
	to.Filter = store.Filter{Topics: db.GlobOf(p.Topics), Types: db.GlobOf(p.Types), Keys: db.GlobOf(p.Keys), Headers: p.Headers}
	if p.PausedAt != nil {
		to.PausedAt = p.PausedAt.UTC()
	}
	to.CreatedAt = p.CreatedAt.UTC()
}

// pipeWait is the longest wait of an act on pipes for another act, or for retention.
const pipeWait = 10 * time.Second

// pipeAct runs one act on the table pipe exclusively.
func (s *Pipes) pipeAct(ctx context.Context, doing string, act func(tx pgx.Tx) error) error {
	err := s.LookingAnew(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', $1, true), set_config('row_security', 'off', true),
 set_config('jit', 'off', true), set_config('synchronous_commit', 'on', true)`, pipeWait.String())
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql.pipeLock); err != nil {
			return err
		}
		return act(tx)
	})
	if db.Blocked(err) {
		return fmt.Errorf("%s: another session holds the pipes of schema %q; try again: %w", doing, s.Schema, err)
	}
	var forfeit *ops.ForfeitError
	if errors.Is(err, store.ErrNoPipe) || errors.Is(err, ops.ErrPipeExists) || errors.Is(err, store.ErrUnusable) || errors.As(err, &forfeit) {
		return err
	}
	return s.Wrap(doing, err)
}

// AddPipe makes a pipe. If the pipe begins at a time, AddPipe reads the whole outbox once and
// holds up retention during it.
func (s *Pipes) AddPipe(ctx context.Context, req ops.AddPipe) (ops.Pipe, error) {
	if s.Bad != nil {
		return ops.Pipe{}, s.Bad
	}
	if err := checkPipeName(req.Name); err != nil {
		return ops.Pipe{}, err
	}
	if err := req.Filter.Validate(); err != nil {
		return ops.Pipe{}, err
	}
	made := ops.Pipe{}
	err := s.pipeAct(ctx, fmt.Sprintf("add pipe %q", req.Name), func(tx pgx.Tx) error {
		start, err := s.startOf(ctx, tx, req)
		if err != nil {
			return err
		}
		if err := s.insertPipe(ctx, tx, req.Name, req.Filter, start); err != nil {
			return err
		}
		var text string
		if err := tx.QueryRow(ctx, s.sql.pipeFind, req.Name).Scan(&text); err != nil {
			return err
		}
		row, err := db.ParseRow(&text)
		if err != nil {
			return err
		}
		fill(row, &made)
		return s.auditAdd(ctx, tx, req)
	})
	return made, err
}

// auditAdd writes a new pipe into the journal.
func (s *Pipes) auditAdd(ctx context.Context, tx pgx.Tx, req ops.AddPipe) error {
	target := struct {
		From   string       `json:"from"`
		Time   time.Time    `json:"time,omitzero"`
		Filter store.Filter `json:"filter,omitzero"`
	}{req.From.String(), req.Time, req.Filter}
	text, err := json.Marshal(target)
	if err != nil {
		return err
	}
	_, err = s.journal.Write(ctx, tx, ops.JournalEntry{Actor: req.Actor, Act: "pipe add", Pipe: req.Name, Target: text, Reason: req.Reason})
	return err
}

// pipeStart is the start of a new pipe: after pos, with the running transactions.
type pipeStart struct {
	pos int64
	xids.Look
}

// startOf finds the start. It reads the sequence before the snapshot and the next transaction
// id after it, like a read of the relay: see docs/reading.md. This transaction must
// not have an id yet, because age() would count from it.
func (s *Pipes) startOf(ctx context.Context, tx pgx.Tx, req ops.AddPipe) (at pipeStart, err error) {
	if req.From == ops.FromBeginning {
		return at, nil
	}
	if err := tx.QueryRow(ctx, s.sql.pipeEnd).Scan(&at.pos); err != nil {
		return at, err
	}
	var age int64
	var snapshot string
	if req.From == ops.FromNow {
		if err := tx.QueryRow(ctx, xids.LookSQL).Scan(&age, &snapshot); err != nil {
			return at, err
		}
	} else {
		var first *int64
		if err := tx.QueryRow(ctx, s.sql.pipeSince, req.Time).Scan(&age, &snapshot, &first); err != nil {
			return at, err
		}
		if first != nil {
			at.pos = min(at.pos, *first-1)
		}
	}
	at.Look, err = xids.NewLook(snapshot, age)
	return at, err
}

// insertPipe writes the row, and removes rows that an instance may have left that survived an
// earlier pipe of the same name.
func (s *Pipes) insertPipe(ctx context.Context, tx pgx.Tx, name string, f store.Filter, at pipeStart) error {
	headers, err := db.HeadersParam(f.Headers)
	if err != nil {
		return err
	}
	done, err := tx.Exec(ctx, s.sql.pipeAdd, name, db.NewRunningID(), at.pos, int64(at.Next), at.Running.String(),
		db.LikeOf(f.Topics), db.LikeOf(f.Types), db.LikeOf(f.Keys), headers)
	if err != nil {
		return err
	}
	if done.RowsAffected() == 0 {
		return fmt.Errorf("pipe %q of schema %q: %w: choose another name, or remove it first", name, s.Schema, ops.ErrPipeExists)
	}
	for _, text := range s.sql.pipeDrop[:len(s.sql.pipeDrop)-1] {
		if _, err := tx.Exec(ctx, text, name); err != nil {
			return err
		}
	}
	return nil
}

// PausePipe pauses or resumes a pipe.
func (s *Pipes) PausePipe(ctx context.Context, req ops.PausePipe) error {
	if s.Bad != nil {
		return s.Bad
	}
	return s.pipeAct(ctx, fmt.Sprintf("pause pipe %q", req.Name), func(tx pgx.Tx) error {
		done, err := tx.Exec(ctx, s.sql.pipePause, req.Name, !req.Resume, req.Actor, req.Reason)
		if err != nil {
			return err
		}
		if done.RowsAffected() == 0 {
			return unknownPipe(s.Outbox, req.Name)
		}
		act := "pipe pause"
		if req.Resume {
			act = "pipe resume"
		}
		_, err = s.journal.Write(ctx, tx, ops.JournalEntry{Actor: req.Actor, Act: act, Pipe: req.Name, Reason: req.Reason})
		return err
	})
}

func unknownPipe(o *db.Outbox, name string) error {
	return fmt.Errorf("pipe %q of schema %q: %w: `postrider pipe list` lists them", name, o.Schema, store.ErrNoPipe)
}

// RemovePipe removes a pipe and all its rows.
func (s *Pipes) RemovePipe(ctx context.Context, req ops.RemovePipe) (ops.RemovedPipe, error) {
	if s.Bad != nil {
		return ops.RemovedPipe{}, s.Bad
	}
	gone := ops.RemovedPipe{}
	err := s.pipeAct(ctx, fmt.Sprintf("remove pipe %q", req.Name), func(tx pgx.Tx) error {
		var text string
		err := tx.QueryRow(ctx, s.sql.pipeFind, req.Name).Scan(&text)
		if errors.Is(err, pgx.ErrNoRows) {
			return unknownPipe(s.Outbox, req.Name)
		}
		if err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, s.sql.pipeHolds, req.Name).Scan(&gone.Pending, &gone.Parked); err != nil {
			return err
		}
		if gone.Pending+gone.Parked > max(req.Forfeit, 0) {
			return &ops.ForfeitError{Pipe: req.Name, Allowed: req.Forfeit, RemovedPipe: gone}
		}
		if err := s.dropPipe(ctx, tx, req.Name); err != nil {
			return err
		}
		count := gone.Pending + gone.Parked
		_, err = s.journal.Write(ctx, tx, ops.JournalEntry{
			Actor: req.Actor, Act: "pipe remove", Pipe: req.Name, Reason: req.Reason, Count: &count,
			Target: fmt.Appendf(nil, `{"pending": %d, "parked": %d}`, gone.Pending, gone.Parked),
		})
		return err
	})
	return gone, err
}

// dropPipe deletes the rows of a pipe. It deletes large sets before it takes the lock for which
// settlements of other pipes wait, and requests that lock for a moment at a time, because a
// waiting request holds up all later ones.
func (s *Pipes) dropPipe(ctx context.Context, tx pgx.Tx, name string) error {
	if _, err := tx.Exec(ctx, s.sql.pipeDrop[1], name); err != nil {
		return err
	}
	for tries := 0; ; tries++ {
		err := pgx.BeginFunc(ctx, tx, func(part pgx.Tx) error {
			if _, err := part.Exec(ctx, `SELECT set_config('lock_timeout', '100ms', true)`); err != nil {
				return err
			}
			_, err := part.Exec(ctx, s.sql.progressLock)
			return err
		})
		var pg *pgconn.PgError
		if err == nil {
			break
		}
		if !errors.As(err, &pg) || pg.Code != "55P03" || tries >= 50 {
			return err
		}
		if err := db.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	for _, text := range s.sql.pipeDrop {
		if _, err := tx.Exec(ctx, text, name); err != nil {
			return err
		}
	}
	return nil
}
