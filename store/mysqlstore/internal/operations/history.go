package operations

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/store/internal/points"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// blockedOf is the number of dead letters whose keys are counted as blocked.
const blockedOf = 2000

// History keeps the figures of one pipe over time. It is safe for concurrent use.
type History struct{ *db.Outbox }

// Keep implements ops.Historian. Each statement commits by itself: an INSERT that selected its
// figures would lock what it reads, the end of the outbox among it.
func (s History) Keep(ctx context.Context, p ops.Point) (kept bool, err error) {
	err = db.Again(ctx, func() error {
		did, err := s.keep(ctx, p)
		kept = kept || did
		return err
	})
	return kept && err == nil, s.Wrap("keep the figures", err)
}

func (s History) keep(ctx context.Context, p ops.Point) (bool, error) {
	var now, blocked int64
	err := s.DB.QueryRowContext(ctx, `SELECT `+db.Now+`, GREATEST(COALESCE((SELECT MAX(seq) FROM postrider_outbox), 0), COALESCE((SELECT MAX(pos) FROM postrider_progress WHERE pipe = ?), 0))`,
		s.Pipe).Scan(&now, &p.Drawn)
	if err == nil && p.Dead > 0 {
		err = s.DB.QueryRowContext(ctx, blockedKeys, s.Pipe, blockedOf).Scan(&blocked)
	}
	if err != nil {
		return false, err
	}
	if _, err := s.DB.ExecContext(ctx, aheadPoints, s.Pipe, now+ops.PointSlot.Microseconds(), now+ops.PointsAhead.Microseconds()); err != nil {
		return false, err
	}
	at, grain := now-now%ops.PointSlot.Microseconds(), ops.PointEvery
	for _, g := range ops.PointGrains() {
		var some bool
		err := s.DB.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM postrider_sample WHERE pipe = ? AND at BETWEEN ? AND ?)`,
			s.Pipe, now-now%g.Every.Microseconds(), at).Scan(&some)
		if err != nil {
			return false, err
		}
		if !some {
			grain = g.Every
		}
	}
	_, err = s.DB.ExecContext(ctx, "INSERT INTO postrider_sample (pipe, at, grain, drawn, delivered, pending, capped, `lag`, dead, blocked, relays) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		s.Pipe, at, int64(grain.Seconds()), p.Drawn, p.Delivered, p.Pending, p.Capped, p.Lag.Microseconds(), p.Dead, blocked, p.Relays)
	if db.Code(err) == db.ErrDuplicate {
		return false, nil // another process was faster
	}
	if err != nil {
		return false, err
	}
	there, err := s.thin(ctx, now)
	return there || err != nil, err
}

// blockedKeys counts the keys that wait behind the first dead letters.
const blockedKeys = "SELECT COUNT(*) FROM (SELECT DISTINCT k.lane, k.`key` FROM" +
	" (SELECT lane, `key`, captures FROM postrider_parked FORCE INDEX (of_state) WHERE pipe = ? AND state = 'dead' ORDER BY seq LIMIT ?) AS k WHERE k.captures AND k.`key` <> '') AS b"

// thin removes the points that are too old for their grain, and all points of a pipe that was
// removed meanwhile. It reports whether the pipe is there.
func (s History) thin(ctx context.Context, now int64) (there bool, err error) {
	err = s.DB.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM postrider_progress WHERE pipe = ?)`, s.Pipe).Scan(&there)
	if err != nil {
		return false, err
	}
	if !there {
		_, err = s.DB.ExecContext(ctx, `DELETE FROM postrider_sample WHERE pipe = ?`, s.Pipe)
		return false, err
	}
	for _, g := range ops.PointGrains() {
		_, err := s.DB.ExecContext(ctx, thinPoints, s.Pipe, int64(g.Every.Seconds()), now-g.Keep.Microseconds())
		if err != nil {
			return there, fmt.Errorf("thin: %w", err)
		}
	}
	return there, nil
}

const (
	thinPoints  = `DELETE FROM postrider_sample WHERE pipe = ? AND grain = ? AND at < ?`
	aheadPoints = `DELETE FROM postrider_sample WHERE pipe = ? AND at > ? AND at <= ?`
	listPoints  = `SELECT ` + points.Columns + ` FROM postrider_sample WHERE pipe = ? AND at BETWEEN ? AND ` + db.Now + ` + ? AND grain >= ? ORDER BY at`
)

// Points implements ops.Historian.
func (s History) Points(ctx context.Context, since time.Time, every time.Duration) ([]ops.Point, error) {
	all, err := points.Read(s.DB.QueryContext(ctx, listPoints, s.Pipe, since.UnixMicro(), ops.PointSlot.Microseconds(), int64(every.Seconds()))) //nolint:rowserrcheck // Read checks it
	return all, s.Wrap("read the history", err)
}
