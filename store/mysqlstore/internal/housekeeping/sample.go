// Package housekeeping removes what every pipe of an outbox has settled.
package housekeeping

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// unmoved is how long lanes that have not moved in a minute are not looked at again.
const unmoved = 5 * time.Second

// Sample notes where all lanes of the pipe stand, once a minute and only if one of them has
// moved. at is the server's time, and next is when there is something to do again.
func Sample(ctx context.Context, o *db.Outbox, q db.Querier, at int64) (next int64, err error) {
	var last int64
	var before db.Times
	// A row that lies ahead was written before the clock was set back.
	err = q.QueryRowContext(ctx, `SELECT at, high, lanes FROM postrider_times WHERE pipe = ? AND at <= ? ORDER BY at DESC LIMIT 1`, o.Pipe, at).Scan(&last, &before.High, &before.Lanes)
	first := errors.Is(err, sql.ErrNoRows)
	if err != nil && !first {
		return 0, err
	}
	if next = last + time.Minute.Microseconds(); !first && at < next {
		return next, nil
	}
	lanes, err := lanesOf(ctx, q, o.Pipe)
	if err != nil || len(lanes) == 0 {
		return 0, err
	}
	stands := make([]db.Stand, 1+slices.Max(slices.Collect(maps.Keys(lanes))))
	var sent int64
	for lane, l := range lanes {
		stands[lane] = db.Stand{Floor: floorOf(l.settled), Top: l.settled.At}
		if first || stands[lane].Floor > before.Floor(lane) {
			sent = max(sent, l.at)
		}
	}
	now, low, moved := before.Next(stands)
	if !moved && !first {
		return at + unmoved.Microseconds(), nil
	}
	// Its time is that of before the positions were read, or later.
	_, err = q.ExecContext(ctx, `INSERT INTO postrider_times (pipe, at, sent, high, low, lanes) VALUES (?, `+db.Now+`, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE postrider_times.at = postrider_times.at`,
		o.Pipe, sent, now.High, low, now.Lanes)
	return at + time.Minute.Microseconds(), err
}

// standing is where a pipe stands in a lane, and when the lane was settled last.
type standing struct {
	settled holes.Position
	at      int64
}

func lanesOf(ctx context.Context, q db.Querier, pipe string) (map[store.Lane]standing, error) {
	rows, err := q.QueryContext(ctx, `SELECT lane, pos, holes, settled_at FROM postrider_progress WHERE pipe = ?`, pipe)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[store.Lane]standing{}
	for rows.Next() {
		var lane store.Lane
		var pos, at int64
		var text sql.NullString
		if err := rows.Scan(&lane, &pos, &text, &at); err != nil {
			return nil, err
		}
		settled, err := db.Position(pos, text)
		if err != nil {
			return nil, err
		}
		all[lane] = standing{settled, at}
	}
	return all, rows.Err()
}

// floorOf is the number up to which everything is settled.
func floorOf(p holes.Position) int64 {
	if len(p.Open) > 0 {
		return min(p.At, p.Open[0].First-1)
	}
	return p.At
}

// progress is where one pipe is.
type progress struct {
	pipe    string
	settled map[store.Lane]holes.Position
	quiet   map[store.Lane]int64 // when a lane was settled last
	floors  db.Times             // of the newest sample that is old enough
	sample  int64                // its time, 0: none
}

// progresses reads all pipes, with their newest samples of a time or before.
func progresses(ctx context.Context, q db.Querier, cutoff int64) (all []*progress, err error) {
	rows, err := q.QueryContext(ctx, `SELECT pipe, lane, pos, holes, settled_at FROM postrider_progress ORDER BY pipe, lane`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var pipe string
		var text sql.NullString
		var lane store.Lane
		var pos, at int64
		if err := rows.Scan(&pipe, &lane, &pos, &text, &at); err != nil {
			return nil, err
		}
		p, err := db.Position(pos, text)
		if err != nil {
			return nil, err
		}
		if len(all) == 0 || all[len(all)-1].pipe != pipe {
			all = append(all, &progress{pipe: pipe, settled: map[store.Lane]holes.Position{}, quiet: map[store.Lane]int64{}})
		}
		one := all[len(all)-1]
		one.settled[lane], one.quiet[lane] = p, at
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	for _, one := range all {
		var t db.Times
		err := q.QueryRowContext(ctx, `SELECT at, high, lanes FROM postrider_times WHERE pipe = ? AND at <= ? ORDER BY at DESC LIMIT 1`, one.pipe, cutoff).Scan(&one.sample, &t.High, &t.Lanes)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("times of pipe %q: %w", one.pipe, err)
		}
		one.floors = t
	}
	return all, nil
}

// old is the number up to which a pipe had settled a lane at a time. A position that was
// moved back, by a person or a restore, counts as it is now.
func (p *progress) old(lane store.Lane, cutoff int64) int64 {
	if at := p.quiet[lane]; at > 0 && at <= cutoff {
		return p.settled[lane].At
	}
	return min(p.floors.Floor(lane), p.settled[lane].At)
}
