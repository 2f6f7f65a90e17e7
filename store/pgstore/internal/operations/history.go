package operations

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// History keeps the figures of one pipe over time. It is safe for concurrent use.
type History struct {
	*db.Outbox
	sql struct{ ahead, keep, thin, points string }
}

// blockedOf is the number of dead letters whose keys are counted as blocked.
const blockedOf = 2000

// NewHistory returns the history of a pipe. It does no I/O.
func NewHistory(o *db.Outbox) *History {
	s := &History{Outbox: o}
	grains, old := "", []string{}
	for i, g := range ops.PointGrains() {
		seconds := int(g.Every.Seconds())
		if i > 0 {
			grains = fmt.Sprintf(" WHEN NOT EXISTS (SELECT FROM {{schema}}.sample s WHERE s.pipe = $1 AND s.at BETWEEN to_timestamp(floor(extract(epoch FROM b.at) / %d) * %d) AND b.at) THEN %d",
				seconds, seconds, seconds) + grains // the longest first
		}
		old = append(old, fmt.Sprintf("grain = %d AND at < now() - interval '%d seconds'", seconds, int(g.Keep.Seconds())))
	}
	s.sql.ahead = o.Render(fmt.Sprintf(`DELETE FROM {{schema}}.sample WHERE pipe = $1 AND at > now() + interval '%d seconds' AND at <= now() + interval '%d seconds'`,
		int(ops.PointSlot.Seconds()), int(ops.PointsAhead.Seconds())))
	// A pipe that is removed meanwhile leaves no row behind. Numbers begin anew with each room of a
	// partition, so that the numbers that a change of partitions passes over are nobody's messages.
	s.sql.keep = o.Render(`INSERT INTO {{schema}}.sample (pipe, at, grain, drawn, delivered, pending, capped, lag, dead, blocked, relays)
SELECT $1, b.at, CASE` + grains + fmt.Sprintf(" ELSE %d END, ", int(ops.PointEvery.Seconds())) + `greatest(q.last_value % {{schema}}.partition_size() - (NOT q.is_called)::integer, 0),
 $2, $3, $4, $5, $6::bigint, CASE WHEN $6::bigint > 0 THEN (SELECT count(*) FROM (SELECT DISTINCT k.lane, k.key FROM
   (SELECT k.lane, k.key, k.captures FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.state = 'dead' ORDER BY k.seq LIMIT ` + fmt.Sprint(blockedOf) + `) k
   WHERE k.captures AND k.key <> '') k) ELSE 0 END, $7
FROM (SELECT to_timestamp(floor(extract(epoch FROM clock_timestamp()) / ` + fmt.Sprint(int(ops.PointSlot.Seconds())) + `) * ` + fmt.Sprint(int(ops.PointSlot.Seconds())) + `) AS at) b, {{schema}}.outbox_seq q
WHERE EXISTS (SELECT FROM {{schema}}.pipe WHERE name = $1) ON CONFLICT (pipe, at) DO NOTHING`)
	s.sql.thin = o.Render(`DELETE FROM {{schema}}.sample WHERE pipe = $1 AND (` + strings.Join(old, " OR ") + `)`)
	s.sql.points = o.Render(`SELECT at, drawn, delivered, pending, capped, lag, dead, blocked, relays FROM {{schema}}.sample
WHERE pipe = $1 AND at BETWEEN $2 AND now() + interval '` + fmt.Sprint(int(ops.PointSlot.Seconds())) + ` seconds' AND grain >= $3 ORDER BY at`)
	return s
}

// Keep implements ops.Historian.
func (s *History) Keep(ctx context.Context, p ops.Point) (kept bool, err error) {
	if s.Bad != nil {
		return false, s.Bad
	}
	err = s.LookingAnew(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.sql.ahead, s.Pipe); err != nil {
			return err
		}
		done, err := tx.Exec(ctx, s.sql.keep, s.Pipe, p.Delivered, p.Pending, p.Capped, p.Lag.Seconds(), p.Dead, p.Relays)
		if kept = err == nil && done.RowsAffected() > 0; !kept {
			return err
		}
		_, err = tx.Exec(ctx, s.sql.thin, s.Pipe)
		return err
	})
	return kept && err == nil, s.Wrap("keep the figures", err)
}

// Points implements ops.Historian.
func (s *History) Points(ctx context.Context, since time.Time, every time.Duration) (all []ops.Point, err error) {
	if s.Bad != nil {
		return nil, s.Bad
	}
	err = s.Ask(ctx, func(rows pgx.Rows) error {
		for rows.Next() {
			var p ops.Point
			var lag float64
			if err := rows.Scan(&p.At, &p.Drawn, &p.Delivered, &p.Pending, &p.Capped, &lag, &p.Dead, &p.Blocked, &p.Relays); err != nil {
				return err
			}
			p.At, p.Lag = p.At.UTC(), db.Seconds(lag)
			all = append(all, p)
		}
		return rows.Err()
	}, s.sql.points, s.Pipe, since, int(every.Seconds()))
	return all, s.Wrap("read the history", err)
}
