package operations

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// mostListed is how many numbers one statement lists at most.
const mostListed = 10_000

// Begin makes a pipe on a connection that is in no transaction: each statement must see
// what is committed when it begins. The error matches ops.ErrPipeExists where the pipe is
// there already. write is done in the transaction that makes it; it may be nil.
func Begin(ctx context.Context, o *db.Outbox, q db.Querier, req ops.AddPipe, write func() error) error {
	return o.Alone(ctx, q, func() error {
		var exists bool
		var lanes int
		err := q.QueryRowContext(ctx, `SELECT lanes, EXISTS (SELECT 1 FROM postrider_progress WHERE pipe = ?) FROM postrider_info`, req.Name).Scan(&lanes, &exists)
		if err == nil && exists {
			err = fmt.Errorf("pipe %q: %w: choose another name, or remove it first", req.Name, ops.ErrPipeExists)
		}
		if err != nil {
			return err
		}
		p, err := start(ctx, q, req)
		if err != nil {
			return err
		}
		filter, err := json.Marshal(req.Filter)
		if err != nil {
			return err
		}
		return db.Again(ctx, func() error {
			return db.InTransaction(ctx, q, func() error {
				if err := insert(ctx, q, req.Name, string(filter), lanes, p); err != nil || write == nil {
					return err
				}
				return write()
			})
		})
	})
}

// insert writes the rows of a new pipe. What an earlier pipe of that name has left is not its.
func insert(ctx context.Context, q db.Querier, pipe, filter string, lanes int, p holes.Position) error {
	if err := drop(ctx, q, pipe, "postrider_dropped"); err != nil {
		return err
	}
	if _, err := q.ExecContext(ctx, `INSERT INTO postrider_pipe (name, filter) VALUES (?, ?)`, pipe, filter); err != nil {
		return err
	}
	var each []string
	for lane := range lanes {
		each = append(each, fmt.Sprintf("SELECT %d AS lane", lane))
	}
	// Epochs of an earlier pipe of that name, which a relay may still have in its hands, are lower.
	_, err := q.ExecContext(ctx, `INSERT INTO postrider_progress (pipe, lane, epoch, pos, holes) SELECT x.pipe, l.lane, x.epoch, x.pos, x.holes
		FROM (SELECT ? AS pipe, `+db.Now+` AS epoch, ? AS pos, ? AS holes) AS x JOIN (`+strings.Join(each, " UNION ALL ")+`) AS l`, pipe, p.At, db.HolesText(p.Open))
	return err
}

// start is where a new pipe starts.
func start(ctx context.Context, q db.Querier, req ops.AddPipe) (holes.Position, error) {
	if req.From == ops.FromBeginning {
		return holes.Position{}, nil
	}
	p, err := end(ctx, q, req.Name)
	if err != nil || req.From == ops.FromNow {
		return p, err
	}
	var oldest sql.NullInt64
	err = q.QueryRowContext(ctx, `SELECT MIN(seq) FROM postrider_outbox WHERE created_at >= ?`, req.Time.UnixMicro()).Scan(&oldest)
	if err == nil && oldest.Valid && oldest.Int64 <= p.At {
		below, _ := p.Open.Split(oldest.Int64 - 1)
		p = holes.Position{At: oldest.Int64 - 1, Open: below}
	}
	return p, err
}

// end is the position behind the highest visible number, with everything below it that
// is not visible as holes.
//
// It reads the numbers from the highest down. A row that is seen has no predecessor that
// was missed before, so what the pipe is given and what it is not is a clean cut. Below
// what another pipe has passed in every lane it knows the holes without reading.
func end(ctx context.Context, q db.Querier, pipe string) (p holes.Position, err error) {
	known, floor, open, err := passed(ctx, q)
	if err != nil {
		return p, err
	}
	// What the other one gave up by mistake is looked for by the new pipe too.
	_, err = q.ExecContext(ctx, `INSERT INTO postrider_dropped (pipe, high, low, dropped_at) SELECT ?, d.high, d.low, d.dropped_at FROM postrider_dropped d
		WHERE d.pipe = ? ON DUPLICATE KEY UPDATE postrider_dropped.low = postrider_dropped.low`, pipe, known)
	if err != nil {
		return p, err
	}
	for last := int64(math.MaxInt64); ; {
		seqs, err := db.List[int64](ctx, q, `SELECT seq FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE seq > ? AND seq < ? ORDER BY seq DESC LIMIT ?`, floor, last, mostListed)
		if err != nil {
			return p, err
		}
		for _, seq := range seqs {
			if p.At == 0 {
				p.At = seq
			} else if seq < last-1 {
				p.Open = append(p.Open, holes.Range{First: seq + 1, Last: last - 1})
			}
			last = seq
		}
		if len(seqs) == mostListed {
			continue
		}
		if p.At > 0 && floor+1 < last {
			p.Open = append(p.Open, holes.Range{First: floor + 1, Last: last - 1})
		}
		break
	}
	p.At = max(p.At, floor)
	slices.Reverse(p.Open)
	seen, err := db.Probe(ctx, q, open)
	p.Open = p.Open.Or(open.Minus(holes.Of(seen)))
	return p, err
}

// passed returns the pipe that is farthest, the number that it has passed in every lane, and
// the numbers below it whose rows may still come.
func passed(ctx context.Context, q db.Querier) (pipe string, floor int64, open holes.Set, err error) {
	err = q.QueryRowContext(ctx, `SELECT pipe, MIN(pos) AS least FROM postrider_progress GROUP BY pipe ORDER BY least DESC, pipe LIMIT 1`).Scan(&pipe, &floor)
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, nil, nil
	}
	if err != nil {
		return "", 0, nil, err
	}
	rows, err := q.QueryContext(ctx, `SELECT pos, holes FROM postrider_progress WHERE pipe = ?`, pipe)
	if err != nil {
		return "", 0, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var pos int64
		var text sql.NullString
		if err := rows.Scan(&pos, &text); err != nil {
			return "", 0, nil, err
		}
		p, err := db.Position(pos, text)
		if err != nil {
			return "", 0, nil, err
		}
		open = open.Or(p.Open)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return "", 0, nil, err
	}
	open, _ = open.Split(floor)
	return pipe, floor, open, nil
}

// tables are those with rows of pipes, without the table postrider_pipe itself.
var tables = []string{ //nolint:gochecknoglobals // a constant that Go has no literal for
	"postrider_progress", "postrider_relay", "postrider_parked", "postrider_act", "postrider_hold", "postrider_stop", "postrider_repair",
	"postrider_times", "postrider_unparked", "postrider_dropped", "postrider_alarm", "postrider_report", "postrider_sample",
}

// drop removes the rows of a pipe from all tables but some.
func drop(ctx context.Context, q db.Querier, pipe string, but ...string) error {
	for _, table := range tables {
		if slices.Contains(but, table) {
			continue
		}
		if _, err := q.ExecContext(ctx, `DELETE FROM `+table+` WHERE pipe = ?`, pipe); err != nil {
			return err
		}
	}
	_, err := q.ExecContext(ctx, `DELETE FROM postrider_pipe WHERE name = ?`, pipe)
	return err
}
