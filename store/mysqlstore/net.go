package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/late"
	"github.com/postrider/postrider/store/ops"
)

// Numbers that were given up are kept, and looked for: a hole that was taken for dead by
// mistake, such as after the server's clock was set back, costs order and no message.
const (
	sweepEach  = time.Minute
	sweepPages = time.Second // between the pages of one sweep
	sweepPage  = 2000        // ranges of one page, and rows that it brings back
	// droppedFor is how long a number is looked for that was given up.
	droppedFor = 24 * time.Hour
)

// Kinds of alarms.
const alarmLate = "late" // rows came whose numbers were given up

// drop notes numbers that are about to be given up. Another instance may have noted them
// already.
func (s *Store) drop(ctx context.Context, q db.Querier, dead holes.Set) error {
	if len(dead) == 0 {
		return nil
	}
	noted, err := s.dropped(ctx, q, dead[0].First-1, db.MostRanges*db.MostRanges, dead[len(dead)-1].Last, "")
	if err != nil {
		return err
	}
	for dead = dead.Minus(holes.Set{}.Or(noted)); len(dead) > 0; {
		n := min(len(dead), 1000)
		if err := s.note(ctx, q, dead[:n]); err != nil {
			return err
		}
		dead = dead[n:]
	}
	return nil
}

func (s *Store) note(ctx context.Context, q db.Querier, set holes.Set) error {
	if len(set) == 0 {
		return nil
	}
	var args []any
	for _, r := range set {
		args = append(args, s.box.Pipe, r.Last, r.First)
	}
	_, err := q.ExecContext(ctx, `INSERT INTO postrider_dropped (pipe, high, low, dropped_at) VALUES `+
		strings.TrimSuffix(strings.Repeat(`(?, ?, ?, `+db.Now+`), `, len(set)), ", ")+
		` ON DUPLICATE KEY UPDATE low = LEAST(low, VALUES(low)), dropped_at = VALUES(dropped_at)`, args...)
	return err
}

// dropped returns ranges of numbers that were given up and end above a number, ascending
// by their ends, and none that begins above the last one. Ranges that two instances noted
// at the same time can overlap. suffix ends the query.
func (s *Store) dropped(ctx context.Context, q db.Querier, above int64, most int, last int64, suffix string) (holes.Set, error) {
	return ranges(ctx, q, `SELECT low, high FROM postrider_dropped WHERE pipe = ? AND high > ? AND low <= ? ORDER BY high LIMIT ?`+suffix, s.box.Pipe, above, last, most)
}

func ranges(ctx context.Context, q db.Querier, query string, args ...any) (set holes.Set, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r holes.Range
		if err := rows.Scan(&r.First, &r.Last); err != nil {
			return nil, err
		}
		set = append(set, r)
	}
	return set, rows.Err()
}

// sweep looks for rows whose numbers were given up, a page at a time, and has their lanes
// read again.
func (s *Store) sweep(ctx context.Context, conn *sql.Conn) error {
	began := s.elapsed()
	if began < s.eye.sweepAt {
		return nil
	}
	err := s.sweepSome(ctx, conn, began)
	if err != nil && !errors.Is(err, store.ErrIdentity) {
		s.eye.sweepAt = began + sweepEach
	}
	return s.refusal.Ended(ctx, err)
}

func (s *Store) sweepSome(ctx context.Context, conn *sql.Conn, began time.Duration) error {
	e := &s.eye
	page, err := s.dropped(ctx, conn, e.sweepFrom, sweepPage, 1<<62, "")
	if err != nil {
		return err
	}
	e.sweepAt = began + sweepPages
	var came []late.Row
	for some := page; len(some) > 0 && len(came) < sweepPage; {
		n := min(len(some), db.MostRanges)
		if came, err = s.arrivals(ctx, conn, some[:n], came); err != nil {
			return err
		}
		some = some[n:]
	}
	if len(came) > 0 {
		if err = s.revive(ctx, conn, came); errors.Is(err, store.ErrIdentity) {
			e.holes, e.asked, e.sweepFrom, e.sweepAt = holes.Tracker{}, 0, 0, 0
		}
		return err
	}
	if len(page) == sweepPage {
		e.sweepFrom = page[len(page)-1].Last
		return nil
	}
	e.sweepFrom, e.sweepAt = 0, began+sweepEach
	_, err = conn.ExecContext(ctx, `DELETE FROM postrider_dropped WHERE pipe = ? AND dropped_at < `+db.Now+` - ? ORDER BY dropped_at LIMIT 10000`,
		s.box.Pipe, droppedFor.Microseconds())
	return err
}

// arrivals adds the rows that are visible in some ranges, up to a page of them.
func (s *Store) arrivals(ctx context.Context, q db.Querier, set holes.Set, came []late.Row) ([]late.Row, error) {
	rows, err := q.QueryContext(ctx, `SELECT seq, lane FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE `+db.Within(set)+` ORDER BY seq LIMIT ?`, sweepPage-len(came))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var a late.Row
		if err := rows.Scan(&a.Seq, &a.Lane); err != nil {
			return nil, err
		}
		came = append(came, a)
	}
	return came, rows.Err()
}

// late has the lanes read again that have rows whose numbers another instance has given up, while this one still
// waited for them. A row that was sent with its number noted would be found by a sweep, and sent again. Where the server
// refuses it, the lanes that have late rows are not read for now.
func (s *Store) late(ctx context.Context, conn *sql.Conn, reads []store.LaneRead, lanes []scanned) error {
	var came []late.Row
	for i := range lanes {
		for _, h := range lanes[i].lateRows {
			came = append(came, late.Row{Seq: h.seq, Lane: reads[i].Lane})
		}
	}
	if len(came) == 0 {
		return nil
	}
	err := s.reviveLate(ctx, conn, came)
	if err == nil {
		return nil
	}
	for i := range lanes {
		lanes[i].held = len(lanes[i].lateRows) > 0
	}
	return s.refusal.Ended(ctx, err)
}

func (s *Store) reviveLate(ctx context.Context, conn *sql.Conn, came []late.Row) error {
	// Of the ranges that end above the rows, the next ones alone can begin below: this costs the same however many there are.
	first, last := late.Ends(came)
	noted, err := ranges(ctx, conn, `(SELECT low, high FROM postrider_dropped WHERE pipe = ? AND high BETWEEN ? AND ?)
		UNION ALL (SELECT low, high FROM postrider_dropped WHERE pipe = ? AND high > ? ORDER BY high LIMIT 10)`, s.box.Pipe, first, last, s.box.Pipe, last)
	if came = late.Among(came, noted); err != nil || len(came) == 0 {
		return err
	}
	return s.revive(ctx, conn, came)
}

// revive makes numbers that were given up holes again, in the lanes that have their rows, and returns an error that matches
// store.ErrIdentity. The batches of such a lane's owner are void, and its next settlement changes nothing. READ COMMITTED
// is not asked for: with binlog_format = STATEMENT the server refuses its writes. Each read locks, so that none is of an old snapshot.
func (s *Store) revive(ctx context.Context, conn *sql.Conn, came []late.Row) error {
	err := db.Again(ctx, func() error {
		tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		if err != nil {
			return err
		}
		if err = s.reviveIn(ctx, tx, came); err == nil {
			return tx.Commit()
		}
		if end := tx.Rollback(); !errors.Is(end, sql.ErrTxDone) {
			err = errors.Join(err, end)
		}
		return err
	})
	if err != nil {
		return err
	}
	return fmt.Errorf("mysql: %d numbers that were given up have rows now, the first is %d: their lanes are read again: %w", len(came), came[0].Seq, store.ErrIdentity)
}

func (s *Store) reviveIn(ctx context.Context, tx *sql.Tx, came []late.Row) error {
	// Those that are noted no more were revived by another instance, and may have been sent since. The look locks the ranges
	// that it passes, and so has an end: rows behind it have the next one.
	first, _ := late.Ends(came)
	noted, err := s.dropped(ctx, tx, first-1, sweepPage, 1<<62, " FOR UPDATE")
	if came = late.Among(came, noted); err != nil || len(came) == 0 {
		return err
	}
	lanes := map[store.Lane][]int64{}
	var all []int64
	for _, a := range came {
		lanes[a.Lane], all = append(lanes[a.Lane], a.Seq), append(all, a.Seq)
	}
	ids := slices.Sorted(maps.Keys(lanes))
	positions, err := s.box.Positions(ctx, tx, ids, " ORDER BY lane FOR UPDATE")
	if err != nil {
		return err
	}
	for _, lane := range ids {
		p := positions[lane]
		passed, _ := holes.Of(lanes[lane]).Split(p.At) // the others are read in their place
		_, err := tx.ExecContext(ctx, `UPDATE postrider_progress SET holes = ?, owner = '', epoch = epoch + 1 WHERE pipe = ? AND lane = ?`,
			db.HolesText(p.Open.Or(passed)), s.box.Pipe, lane)
		if err != nil {
			return err
		}
		// The notes of the minutes would date them by when the lane passed them. When they are sent, nothing notes.
		behind := slices.DeleteFunc(lanes[lane], func(seq int64) bool { return seq > p.At })
		_, err = tx.ExecContext(ctx, `INSERT INTO postrider_unparked (pipe, seq, at) SELECT ?, seq, NULL FROM postrider_outbox WHERE seq IN (`+db.Numbers(behind)+`)
			ON DUPLICATE KEY UPDATE at = NULL`, s.box.Pipe)
		if err != nil {
			return err
		}
	}
	back := holes.Of(all)
	for _, r := range noted {
		left := holes.Set{r}.Minus(back)
		if slices.Equal(left, holes.Set{r}) {
			continue
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM postrider_dropped WHERE pipe = ? AND high = ?`, s.box.Pipe, r.Last); err != nil {
			return err
		}
		for len(left) > 0 {
			n := min(len(left), 1000)
			if err := s.note(ctx, tx, left[:n]); err != nil {
				return err
			}
			left = left[n:]
		}
	}
	return s.raise(ctx, tx, s.box.Pipe, alarmLate, back.Count())
}

// raise adds to an alarm.
func (s *Store) raise(ctx context.Context, q db.Querier, pipe, kind string, n int64) error {
	_, err := q.ExecContext(ctx, `INSERT INTO postrider_alarm (pipe, kind, n, at) VALUES (?, ?, ?, `+db.Now+`)
		ON DUPLICATE KEY UPDATE n = n + VALUES(n), at = VALUES(at)`, pipe, kind, n)
	return err
}

// alarms are the findings that need an operator.
func (s *Store) alarms(ctx context.Context, q db.Querier, at int64, st *ops.Status) error {
	top, reset, err := s.setBack(ctx, q)
	if err != nil && db.Code(err) != db.ErrTableDenied { // the counter is hidden from readers; relays note what they find
		return err
	}
	if reset {
		st.Alarms = append(st.Alarms, resetError(top).Error())
	}
	var n, last int64
	err = q.QueryRowContext(ctx, `SELECT n, at FROM postrider_alarm WHERE pipe = ? AND kind = ?`, s.box.Pipe, alarmLate).Scan(&n, &last)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if err == nil && at-last < droppedFor.Microseconds() {
		st.Alarms = append(st.Alarms, fmt.Sprintf("%s sent out of order, last at %s: the statements that wrote them were taken for ended; "+
			"slew the server's clock, never set it back, and do not SET TIMESTAMP in sessions that write to the outbox", plural.Of(n, "message was", "messages were"), time.UnixMicro(last).UTC().Format(time.RFC3339)))
	}
	return nil
}
