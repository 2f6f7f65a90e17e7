package housekeeping

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/journal"
)

const (
	// partitionBytes is the size of a partition above which vacuum becomes a burden.
	partitionBytes = 64 << 30
	// shortestUse is the default for the shortest use of a partition.
	shortestUse = time.Hour
)

// Partitioner keeps the partitions of an outbox. It is safe for concurrent use.
type Partitioner struct {
	*db.Outbox
	journal *journal.Journal
	sql     partitionTexts
}

// NewPartitioner returns the partitioner of an outbox. It does no I/O.
func NewPartitioner(o *db.Outbox) *Partitioner {
	s := &Partitioner{Outbox: o, journal: journal.New(o)}
	s.sql.partitionSQL(o.Render)
	return s
}

// Partitions lists the partitions of the outbox from the catalog.
func (s *Partitioner) Partitions(ctx context.Context) (ops.Partitions, error) {
	if s.Bad != nil {
		return ops.Partitions{}, s.Bad
	}
	p, err := s.List(ctx, s.Pool)
	return p, s.Wrap("list the partitions", err)
}

// List reads the partitions with the connection of by.
func (s *Partitioner) List(ctx context.Context, by db.Rower) (p ops.Partitions, err error) {
	rows, err := by.Query(ctx, s.sql.partitions)
	if err != nil {
		return p, err
	}
	defer rows.Close()
	return ScanPartitions(rows)
}

// ScanPartitions reads the rows of [PartitionsSQL].
func ScanPartitions(rows pgx.Rows) (p ops.Partitions, err error) {
	for rows.Next() {
		var one ops.Partition
		var opened, closed db.Time
		var last int64
		if err := rows.Scan(&one.Number, &one.Name, &one.Above, &one.Bytes, &one.Rows, &opened, &closed, &p.Current, &last); err != nil {
			return p, err
		}
		if opened != nil {
			one.OpenedAt = opened.UTC()
		}
		if closed != nil {
			one.ClosedAt = closed.UTC()
		}
		if one.Number > p.Current {
			p.Ahead++
		}
		p.Room = max(one.Above-1-last, 0)
		p.List = append(p.List, one)
	}
	return p, rows.Err()
}

// Tend makes, changes and drops due partitions, each in a separate transaction.
func (s *Partitioner) Tend(ctx context.Context, req ops.TendRequest) (ops.Tended, error) {
	var t ops.Tended
	if s.Bad != nil {
		return t, s.Bad
	}
	var err error
	if t.Partitions, err = s.List(ctx, s.Pool); err != nil || len(t.List) == 0 {
		return t, s.Wrap("tend the partitions", err)
	}
	if req.DryRun {
		return t, s.Wrap("look what is due to the partitions", s.due(ctx, req, &t))
	}
	err = s.makeAhead(ctx, &t)
	// Without drops no other partition is needed.
	if err == nil && (req.OlderThan >= 0 || req.Every > 0) && len(t.List)+t.Made < ops.MaxPartitions {
		err = s.roll(ctx, req, &t)
	}
	if err == nil && req.OlderThan >= 0 {
		err = s.dropDue(ctx, req, &t)
	}
	if locked(err) {
		t.Busy, err = true, nil
	}
	if err == nil {
		t.Partitions, err = s.List(ctx, s.Pool)
	}
	return t, s.Wrap("tend the partitions", err)
}

// due counts the partitions that would be dropped.
func (s *Partitioner) due(ctx context.Context, req ops.TendRequest, t *ops.Tended) error {
	if req.OlderThan < 0 || req.OnlyEmpty {
		return nil
	}
	return s.LookingAnew(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('statement_timeout', '10min', true)`); err != nil {
			return err
		}
		return tx.QueryRow(ctx, s.sql.dropDue, req.OlderThan, req.KeepBytes).Scan(&t.Dropped, &t.Rows, &t.HeldBy)
	})
}

func (s *Partitioner) makeAhead(ctx context.Context, t *ops.Tended) error {
	return s.tending(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.sql.note); err != nil {
			return err
		}
		return tx.QueryRow(ctx, s.sql.make, db.PartitionsAhead).Scan(&t.Made)
	})
}

// roll moves the writers to the next partition when it is due, and makes another one ahead.
func (s *Partitioner) roll(ctx context.Context, req ops.TendRequest, t *ops.Tended) error {
	every, bytes := req.Every, req.MaxBytes
	if every <= 0 {
		every = max(req.OlderThan/6, shortestUse)
	}
	if bytes <= 0 {
		bytes = partitionBytes
	}
	if req.KeepBytes > 0 {
		bytes = min(bytes, req.KeepBytes/4)
	}
	return s.tending(ctx, func(tx pgx.Tx) error {
		var now *int64
		if err := tx.QueryRow(ctx, s.sql.roll, every, bytes).Scan(&now); err != nil || now == nil {
			return err
		}
		t.Rolled = true
		var made int
		err := tx.QueryRow(ctx, s.sql.make, db.PartitionsAhead).Scan(&made)
		t.Made += made
		return err
	})
}

func (s *Partitioner) dropDue(ctx context.Context, req ops.TendRequest, t *ops.Tended) error {
	for ctx.Err() == nil {
		older := req.OlderThan
		if req.KeepBytes > 0 {
			p, err := s.List(ctx, s.Pool)
			if err != nil {
				return err
			}
			if p.Bytes() > req.KeepBytes {
				older = 0
			}
		}
		if more, err := s.dropOne(ctx, req, older, t); err != nil || !more {
			return err
		}
	}
	return ctx.Err()
}

// dropWaits has, for each attempt, the milliseconds for which a drop waits for the outbox
// while all writers wait behind it.
var dropWaits = []int{50, 200} //nolint:gochecknoglobals // a constant that Go has no literal for

// dropOne drops the oldest partition if it is due, and reports whether another may be due.
func (s *Partitioner) dropOne(ctx context.Context, req ops.TendRequest, older time.Duration, t *ops.Tended) (more bool, err error) {
	for _, ms := range dropWaits {
		err = s.tending(ctx, func(tx pgx.Tx) error {
			var victim, removed *int64
			var held *string
			if err := tx.QueryRow(ctx, s.sql.drop, older, req.OnlyEmpty, ms).Scan(&victim, &removed, &held); err != nil {
				return err
			}
			more = victim != nil && held == nil
			if held != nil {
				t.HeldBy = *held
			}
			if !more {
				return nil
			}
			if err := s.write(ctx, tx, req, *victim, *removed); err != nil {
				return err
			}
			t.Dropped++
			t.Rows += *removed
			return nil
		})
		if !locked(err) {
			return more, err
		}
	}
	return false, err
}

// write records in the journal that a person drops a partition.
func (s *Partitioner) write(ctx context.Context, tx pgx.Tx, req ops.TendRequest, number, rows int64) error {
	if req.Actor == "" {
		return nil
	}
	_, err := s.journal.Write(ctx, tx, ops.JournalEntry{
		Actor: req.Actor, Act: actPrune, Reason: req.Reason, Count: &rows,
		Target: fmt.Appendf(nil, `{"partition":%d}`, number),
	})
	return err
}

// errTended reports that another process is tending the partitions.
var errTended = errors.New("another process is tending the partitions")

// tending runs do in a transaction unless another process tends or migrates. It waits only
// briefly for locks on tables, but gives counting enough time.
func (s *Partitioner) tending(ctx context.Context, do func(pgx.Tx) error) error {
	return s.LookingAnew(ctx, func(tx pgx.Tx) error {
		var alone bool
		err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0)) FROM (SELECT set_config('lock_timeout', '200ms', true),
			set_config('statement_timeout', '0', true), set_config('row_security', 'off', true)) x`, db.MigrateLock+s.Schema).Scan(&alone)
		switch {
		case err != nil:
			return err
		case !alone:
			return errTended
		}
		return do(tx)
	})
}

// locked reports whether a later attempt may succeed.
func locked(err error) bool {
	return errors.Is(err, errTended) || db.Blocked(err)
}
