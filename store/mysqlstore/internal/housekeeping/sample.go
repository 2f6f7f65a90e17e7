// Package housekeeping removes what every pipe of an outbox has settled.
package housekeeping

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// Sample notes, once a minute, up to which number the pipe has settled everything. at is
// the server's time.
func Sample(ctx context.Context, o *db.Outbox, q db.Querier, at int64) error {
	var last sql.NullInt64
	if err := q.QueryRowContext(ctx, `SELECT MAX(at) FROM postrider_settled WHERE pipe = ?`, o.Pipe).Scan(&last); err != nil {
		return err
	}
	// One that lies ahead was written before the clock was set back.
	if last.Valid && at-last.Int64 < time.Minute.Microseconds() && last.Int64 <= at {
		return nil
	}
	lanes, err := lanesOf(ctx, q, o.Pipe)
	if err != nil {
		return err
	}
	floors := map[store.Lane]int64{}
	var noted []string
	var args []any
	for _, lane := range slices.Sorted(maps.Keys(lanes)) { // in one order, so that two instances do not deadlock
		l := lanes[lane]
		floors[lane] = floorOf(l.settled)
		noted, args = append(noted, `(?, ?, ?, ?, ?)`), append(args, o.Pipe, lane, floors[lane], l.settled.At, l.at)
	}
	if len(noted) > 0 {
		_, err := q.ExecContext(ctx, `INSERT INTO postrider_minute (pipe, lane, pos, top, at) VALUES `+strings.Join(noted, `, `)+`
			ON DUPLICATE KEY UPDATE top = GREATEST(top, VALUES(top))`, args...)
		if err != nil {
			return err
		}
	}
	text, err := json.Marshal(floors)
	if err != nil {
		return err
	}
	// Its time is that of before the positions were read, or later.
	_, err = q.ExecContext(ctx, `INSERT INTO postrider_settled (pipe, at, floors) VALUES (?, `+db.Now+`, ?) ON DUPLICATE KEY UPDATE postrider_settled.at = postrider_settled.at`, o.Pipe, string(text))
	return err
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
		var text string
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
	floors  map[store.Lane]int64 // of the newest sample that is old enough
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
		var pipe, text string
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
		var text string
		err := q.QueryRowContext(ctx, `SELECT at, floors FROM postrider_settled WHERE pipe = ? AND at <= ? ORDER BY at DESC LIMIT 1`, one.pipe, cutoff).Scan(&one.sample, &text)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err == nil {
			err = json.Unmarshal([]byte(text), &one.floors)
		}
		if err != nil {
			return nil, fmt.Errorf("sample of pipe %q: %w", one.pipe, err)
		}
	}
	return all, nil
}

// old is the number up to which a pipe had settled a lane at a time. A position that was
// moved back, by a person or a restore, counts as it is now.
func (p *progress) old(lane store.Lane, cutoff int64) int64 {
	if at := p.quiet[lane]; at > 0 && at <= cutoff {
		return p.settled[lane].At
	}
	return min(p.floors[lane], p.settled[lane].At)
}
