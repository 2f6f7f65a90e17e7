package operations

import (
	"context"
	"time"

	"github.com/postrider/postrider/store/internal/points"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// History keeps the figures of one pipe over time. It is safe for concurrent use.
type History struct{ *db.Outbox }

// NewHistory returns the history of a pipe. It does no I/O.
func NewHistory(o *db.Outbox) *History { return &History{o} }

// Keep implements ops.Historian.
func (s *History) Keep(ctx context.Context, p ops.Point) (kept bool, err error) {
	const keeping = "keep the figures"
	now := s.Now()
	at := db.Micros(now.Truncate(ops.PointSlot))
	err = s.Write(ctx, keeping, func(q db.Querier) error {
		_, err := q.ExecContext(ctx, `DELETE FROM postrider_sample WHERE pipe = ? AND at > ? AND at <= ?`, s.Pipe, db.Micros(now.Add(ops.PointSlot)), db.Micros(now.Add(ops.PointsAhead)))
		if err != nil {
			return err
		}
		grain := ops.PointEvery
		for _, g := range ops.PointGrains() {
			var some bool
			err := q.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM postrider_sample WHERE pipe = ? AND at BETWEEN ? AND ?)`,
				s.Pipe, db.Micros(now.Truncate(g.Every)), at).Scan(&some)
			if err != nil {
				return err
			}
			if !some {
				grain = g.Every
			}
		}
		done, err := q.ExecContext(ctx, `INSERT INTO postrider_sample (pipe, at, grain, drawn, delivered, pending, capped, lag, dead, blocked, relays)
SELECT ?1, ?2, ?3, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'postrider_outbox'), 0), ?4, ?5, ?6, ?7, ?8,
 (SELECT count(*) FROM (SELECT DISTINCT lane, key FROM (SELECT lane, key, captures FROM postrider_parked WHERE pipe = ?1 AND state = 'dead' ORDER BY seq LIMIT 2000)
  WHERE captures AND key <> '')), ?9
WHERE true ON CONFLICT (pipe, at) DO NOTHING`, s.Pipe, at, int64(grain.Seconds()), p.Delivered, p.Pending, p.Capped, p.Lag.Microseconds(), p.Dead, p.Relays)
		if err != nil {
			return err
		}
		n, err := done.RowsAffected()
		if kept = err == nil && n > 0; !kept {
			return err
		}
		for _, g := range ops.PointGrains() {
			_, err := q.ExecContext(ctx, `DELETE FROM postrider_sample WHERE pipe = ? AND grain = ? AND at < ?`,
				s.Pipe, int64(g.Every.Seconds()), db.Micros(now.Add(-g.Keep)))
			if err != nil {
				return err
			}
		}
		return nil
	})
	return kept && err == nil, err
}

// Points implements ops.Historian.
func (s *History) Points(ctx context.Context, since time.Time, every time.Duration) ([]ops.Point, error) {
	const list = `SELECT ` + points.Columns + ` FROM postrider_sample WHERE pipe = ? AND at BETWEEN ? AND ? AND grain >= ? ORDER BY at`
	all, err := points.Read(s.DB.QueryContext(ctx, list, s.Pipe, db.Micros(since), db.Micros(s.Now().Add(ops.PointSlot)), int64(every.Seconds()))) //nolint:rowserrcheck // Read checks it
	return all, s.Wrap("read the history", err)
}
