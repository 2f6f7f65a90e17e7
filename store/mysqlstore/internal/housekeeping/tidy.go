package housekeeping

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

const (
	actsKept    = 7 * 24 * time.Hour
	journalKept = 400 * 24 * time.Hour
	samplesKept = 400 * 24 * time.Hour
	tidyBatch   = 10_000 // rows of one statement

	// deadKept is how long the row of an instance that died is kept for Status.
	deadKept = time.Hour
)

// Sweep removes instances that died long ago, and some acts that were executed long ago. at is
// the server's time.
func Sweep(ctx context.Context, o *db.Outbox, q db.Querier, at int64) error {
	// By primary key: a range of times would lock the rows of those who live.
	dead, err := db.List[string](ctx, q, `SELECT boot_id FROM postrider_relay WHERE pipe = ? AND alive_until <= ?`, o.Pipe, at-deadKept.Microseconds())
	if err != nil {
		return err
	}
	for _, boot := range dead {
		if err := Forget(ctx, o, q, boot); err != nil {
			return err
		}
	}
	old, err := db.List[int64](ctx, q, `SELECT id FROM postrider_act WHERE pipe = ? AND done_at < ? ORDER BY id LIMIT 500`, o.Pipe, at-actsKept.Microseconds())
	if err != nil || len(old) == 0 {
		return err
	}
	_, err = q.ExecContext(ctx, `DELETE FROM postrider_act WHERE id IN (`+db.Numbers(old)+`)`)
	return err
}

// Forget removes an instance and its report.
func Forget(ctx context.Context, o *db.Outbox, q db.Querier, boot string) error {
	for _, table := range []string{"postrider_report", "postrider_relay"} {
		if _, err := q.ExecContext(ctx, `DELETE FROM `+table+` WHERE pipe = ? AND boot_id = ?`, o.Pipe, boot); err != nil {
			return err
		}
	}
	return nil
}

// Tidy implements ops.Retainer. Relays and acts are also tidied by each heartbeat, and
// there is one row of progress for each lane of a pipe.
func (s *Retainer) Tidy(ctx context.Context, req ops.TidyRequest) (ops.Tidied, error) {
	if req.Acts <= 0 {
		req.Acts = actsKept
	}
	if req.Journal <= 0 {
		req.Journal = journalKept
	}
	first, err := firstRow(ctx, s.DB)
	if err != nil {
		return nil, s.Wrap("tidy", err)
	}
	done := ops.Tidied{}
	for _, t := range []struct {
		name, condition string
		age             time.Duration
	}{
		{"act", `done_at < ` + db.Now + ` - ? ORDER BY id`, req.Acts},
		{"journal", `at < ` + db.Now + ` - ? ORDER BY id`, max(req.Journal, actsKept)},
		{"times", `at < ` + db.Now + ` - ? AND high < ` + strconv.FormatInt(first, 10) + ` ORDER BY pipe, at`, samplesKept},
	} {
		for {
			var n int64
			err := db.Again(ctx, func() error {
				res, err := s.DB.ExecContext(ctx, `DELETE FROM postrider_`+t.name+` WHERE `+t.condition+` LIMIT ?`, t.age.Microseconds(), tidyBatch)
				if err != nil {
					return err
				}
				n, err = res.RowsAffected()
				return err
			})
			if t.name == "journal" && db.Code(err) == db.ErrTableDenied {
				break // by design only its owner may
			}
			if err != nil {
				return done, s.Wrap("tidy", err)
			}
			if n > 0 {
				done[t.name] += n
			}
			if n < tidyBatch {
				break
			}
		}
	}
	n, err := s.tidyUnparked(ctx)
	if n > 0 {
		done["unparked"] = n
	}
	return done, s.Wrap("tidy", err)
}

// firstRow is the lowest number of the outbox, above all numbers where it is empty.
func firstRow(ctx context.Context, q db.Querier) (int64, error) {
	first := int64(math.MaxInt64)
	err := q.QueryRowContext(ctx, `SELECT seq FROM postrider_outbox ORDER BY seq LIMIT 1`).Scan(&first)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return first, err
}

// tidyUnparked removes times of messages whose rows were gone before they were sent, or that a
// person deleted.
func (s *Retainer) tidyUnparked(ctx context.Context) (n int64, err error) {
	pipes, err := db.List[string](ctx, s.DB, `SELECT DISTINCT pipe FROM postrider_unparked`)
	if err != nil {
		return 0, err
	}
	for _, pipe := range pipes {
		for full := true; full; {
			seqs, err := db.List[int64](ctx, s.DB, `SELECT u.seq FROM postrider_unparked u LEFT JOIN postrider_outbox o ON o.seq = u.seq
				WHERE u.pipe = ? AND o.seq IS NULL LIMIT ?`, pipe, tidyBatch)
			if err != nil {
				return n, err
			}
			if full = len(seqs) == tidyBatch; len(seqs) == 0 {
				break
			}
			err = db.Again(ctx, func() error {
				_, err := s.DB.ExecContext(ctx, `DELETE FROM postrider_unparked WHERE pipe = ? AND seq IN (`+db.Numbers(seqs)+`)`, pipe)
				return err
			})
			if err != nil {
				return n, err
			}
			n += int64(len(seqs))
		}
	}
	return n, nil
}
