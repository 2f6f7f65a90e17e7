package mysqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/operations"
	"github.com/postrider/postrider/store/mysqlstore/internal/sessions"
	"github.com/postrider/postrider/store/ops"
)

// Request implements ops.Admin.
func (s desk) Request(ctx context.Context, act store.Act) (int64, error) {
	return operations.Acts{Outbox: s.box}.Request(ctx, act)
}

// Acts implements ops.Admin.
func (s desk) Acts(ctx context.Context, ids ...int64) ([]ops.ActState, error) {
	return operations.Acts{Outbox: s.box}.States(ctx, ids...)
}

// Parked implements ops.Admin.
func (s desk) Parked(ctx context.Context, query ops.ParkedQuery) ([]ops.ParkedRecord, error) {
	return operations.Parked{Outbox: s.box}.List(ctx, query)
}

// seePipes is the remedy of a look at a pipe that does not exist.
const seePipes = "check --pipe; `postrider pipe list` lists those that do"

// Status implements ops.Admin. It reads one snapshot and changes nothing.
func (s desk) Status(ctx context.Context) (ops.Status, error) {
	st := ops.Status{Pipe: s.box.Pipe, Parked: map[string]int64{}}
	have, err := s.box.SchemaVersion(ctx, s.box.DB)
	if err == nil && have != Version {
		err = &store.SchemaError{Schema: "postrider", Have: have, Want: Version}
	}
	if err != nil {
		return st, err
	}
	tx, err := s.box.DB.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return st, s.box.Wrap("status", err)
	}
	at, err := s.box.Clock(ctx, tx)
	if err == nil {
		err = tx.QueryRowContext(ctx, `SELECT CONCAT(id, '/', epoch) FROM postrider_info`).Scan(&st.Identity)
	}
	if err == nil {
		err = s.box.Knows(ctx, tx, seePipes)
	}
	for _, part := range []func(context.Context, db.Querier, int64, *ops.Status) error{s.instances, s.laneStates, s.laneCounts, s.heldBy, s.alarms} {
		if err == nil {
			err = part(ctx, tx, at, &st)
		}
	}
	if end := tx.Rollback(); !errors.Is(end, sql.ErrTxDone) {
		err = errors.Join(err, end)
	}
	return st, s.box.Wrap("status", err)
}

// heldBy is what people have paused or stopped.
func (s *Store) heldBy(ctx context.Context, q db.Querier, _ int64, st *ops.Status) error {
	_, paused, err := s.box.Set(ctx, q)
	if err != nil {
		return err
	}
	st.Paused = paused.Valid
	if st.Holds, err = (operations.Acts{Outbox: s.box}).Holds(ctx, q); err != nil {
		return err
	}
	st.Stops, err = operations.Stops{Outbox: s.box}.List(ctx, q)
	return err
}

func (s *Store) instances(ctx context.Context, q db.Querier, at int64, st *ops.Status) error {
	rows, err := q.QueryContext(ctx, `SELECT boot_id, instance, CASE WHEN alive_until <= ? + 2 * ttl THEN alive_until ELSE 0 END,
		(SELECT COUNT(*) FROM postrider_progress p WHERE p.pipe = r.pipe AND p.owner = r.boot_id), COALESCE(w.trouble, '[]'), COALESCE(w.held, '[]')
		FROM postrider_relay r LEFT JOIN postrider_report w USING (pipe, boot_id) WHERE pipe = ? ORDER BY instance, boot_id`, at, s.box.Pipe)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var i ops.Instance
		var end int64
		var trouble, held []byte
		if err := rows.Scan(&i.BootID, &i.Name, &end, &i.Lanes, &trouble, &held); err != nil {
			return err
		}
		if err := errors.Join(json.Unmarshal(trouble, &i.Trouble), json.Unmarshal(held, &i.Held)); err != nil {
			return fmt.Errorf("what instance %s reports: %w", i.BootID, err)
		}
		i.AliveFor = max(0, db.Until(at, end))
		i.Alive = i.AliveFor > 0
		st.Instances = append(st.Instances, i)
	}
	return rows.Err()
}

func (s *Store) laneStates(ctx context.Context, q db.Querier, at int64, st *ops.Status) error {
	rows, err := q.QueryContext(ctx, `SELECT p.lane, COALESCE(r.instance, ''), COALESCE(CASE WHEN r.alive_until <= ? + 2 * r.ttl THEN r.alive_until ELSE 0 END, 0), p.epoch, p.delivered,
		NULLIF(p.settled_at, 0)
		FROM postrider_progress p LEFT JOIN postrider_relay r ON r.pipe = p.pipe AND r.boot_id = p.owner
		WHERE p.pipe = ? ORDER BY p.lane`, at, s.box.Pipe)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var l ops.LaneStatus
		var end int64
		var settled sql.NullInt64
		if err := rows.Scan(&l.Lane, &l.Owner, &end, &l.Epoch, &l.Delivered, &settled); err != nil {
			return err
		}
		if l.SettledAt = db.Moment(settled); end != 0 {
			l.Until = max(0, db.Until(at, end))
		}
		l.Leased = l.Until > 0
		st.Delivered += l.Delivered
		st.Lanes = append(st.Lanes, l)
	}
	return rows.Err()
}

// laneCounts counts what lies behind each lane's position and in its holes, up to the limit.
func (s *Store) laneCounts(ctx context.Context, q db.Querier, at int64, st *ops.Status) error {
	filter, _, err := s.box.Set(ctx, q)
	if err != nil {
		return err
	}
	lanes := make([]store.Lane, len(st.Lanes))
	for i := range st.Lanes {
		lanes[i] = st.Lanes[i].Lane
	}
	positions, err := s.box.Positions(ctx, q, lanes, "")
	if err != nil {
		return err
	}
	var crowded holes.Set
	late, aside, err := s.aside(ctx, q, at, lanes)
	if err != nil {
		return err
	}
	above := map[store.Lane]int64{}
	for lane, p := range positions {
		above[lane] = p.At
	}
	behind, err := db.Behind(ctx, q, above)
	if err != nil {
		return err
	}
	for i := range st.Lanes {
		l := &st.Lanes[i]
		p := positions[l.Lane]
		if crowded == nil && len(p.Open) >= mostOpen {
			crowded = p.Open
			st.Alarms = append(st.Alarms, sessions.TooMany(ctx, q, crowded, patience+slack).Error())
		}
		counted, seen, limit := int64(0), int64(0), int64(s.opts.CountLimit)
		count := func(where string) error {
			n, looked, oldest, err := s.count(ctx, q, filter, l.Lane, where, limit-seen)
			if counted, seen = counted+n, seen+looked; oldest.Valid {
				l.Behind = max(l.Behind, -db.Until(at, oldest.Int64))
			}
			return err
		}
		for open := p.Open; len(open) > 0 && seen < limit; {
			n := min(len(open), db.MostRanges)
			if err := count(db.Within(open[:n])); err != nil {
				return err
			}
			open = open[n:]
		}
		inHoles := seen
		if behind[l.Lane] {
			if err := count(fmt.Sprintf("seq > %d", p.At)); err != nil {
				return err
			}
		}
		edge := time.Duration(0)
		if l.Behind == 0 && seen >= limit {
			first, skip := p.At, seen-inHoles
			if inHoles >= limit { // some row of the holes is the first
				first, skip = p.Open[0].First-1, 0
			}
			if edge, err = s.edge(ctx, q, at, l.Lane, first, skip); err != nil {
				return err
			}
		}
		l.Lag = late[l.Lane]
		l.LagCapped = edge > max(l.Lag, l.Behind)
		l.Behind = max(l.Behind, edge)
		if l.HeldTopics, err = s.heldTopics(ctx, q, st, l, p.At); err != nil {
			return err
		}
		l.Lag = max(l.Lag, l.Behind)
		l.Pending += counted
		st.Pending += l.Pending
		st.AddLag(l)
		st.Capped = st.Capped || seen >= limit
	}
	return s.parkedCounts(ctx, q, st, aside)
}

// edge is the age of a lane's first row behind a number and some more rows. If laneCounts counts
// only rows before it, and none of them is due, it bounds the lag.
func (s *Store) edge(ctx context.Context, q db.Querier, at int64, lane store.Lane, seq, skip int64) (time.Duration, error) {
	var created int64
	err := q.QueryRowContext(ctx, `SELECT created_at FROM postrider_outbox FORCE INDEX (lane_seq) WHERE lane = ? AND seq > ? ORDER BY seq LIMIT 1 OFFSET ?`, lane, seq, skip).Scan(&created)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return max(0, -db.Until(at, created)), err
}

// heldTopics are the topics of a lane's first messages, and of the first that are set aside,
// that its owner sends nothing to.
func (s *Store) heldTopics(ctx context.Context, q db.Querier, st *ops.Status, l *ops.LaneStatus, pos int64) (topics []string, err error) {
	for _, i := range st.Instances {
		if !i.Alive || i.Name != l.Owner {
			continue
		}
		for _, h := range i.Held {
			var there bool
			err := q.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM (SELECT topic FROM postrider_outbox FORCE INDEX (lane_seq) WHERE lane = ? AND seq > ? ORDER BY seq LIMIT 256) AS x WHERE topic = ?)
				OR EXISTS (SELECT 1 FROM (SELECT topic FROM postrider_parked WHERE pipe = ? AND lane = ? AND state <> 'dead' ORDER BY seq LIMIT 256) AS y WHERE topic = ?)`,
				l.Lane, pos, h.Destination, s.box.Pipe, l.Lane, h.Destination).Scan(&there)
			if err != nil {
				return nil, err
			}
			if there {
				topics = append(topics, h.Destination)
			}
		}
	}
	return topics, nil
}

// count looks at the rows of a lane that fit, up to a limit, and counts those that pass the
// filter; oldest is the time of the oldest of these or, without a filter, of the first that is due.
func (s *Store) count(ctx context.Context, q db.Querier, filter store.Filter, lane store.Lane, where string, limit int64) (n, seen int64, oldest sql.NullInt64, err error) {
	const time = `GREATEST(created_at, COALESCE(not_before, 0))`
	from := ` FROM postrider_outbox FORCE INDEX (lane_seq) WHERE lane = ? AND ` + where
	rest := from + ` ORDER BY seq LIMIT ?`
	if filter.IsZero() { // by the index alone, and then the first row that is due
		var last sql.NullInt64
		err = q.QueryRowContext(ctx, `SELECT COUNT(*), MAX(seq) FROM (SELECT seq`+rest+`) AS x`, lane, limit).Scan(&n, &last)
		if err == nil && n > 0 {
			err = q.QueryRowContext(ctx, `SELECT `+time+from+` AND seq <= ? AND COALESCE(not_before, 0) <= `+db.Now+` ORDER BY seq LIMIT 1`, lane, last.Int64).Scan(&oldest)
		}
		if errors.Is(err, sql.ErrNoRows) {
			err = nil
		}
		return n, n, oldest, err
	}
	rows, err := q.QueryContext(ctx, `SELECT `+time+`, `+db.Filtered(filter, "")+rest, lane, limit)
	if err != nil {
		return 0, 0, oldest, err
	}
	defer rows.Close()
	for ; rows.Next(); seen++ {
		var at int64
		passes, err := db.ScanFiltered(rows, filter, &at)
		if err != nil {
			return 0, 0, oldest, err
		}
		if passes {
			if n++; !oldest.Valid || at < oldest.Int64 {
				oldest = sql.NullInt64{Int64: at, Valid: true}
			}
		}
	}
	return n, seen, oldest, errors.Join(rows.Err(), rows.Close())
}

// never is the column expected of a dead letter: last in the index, where it holds nothing up.
const never = math.MaxInt64

// aside is what each lane has set aside: how late the oldest such record is, and whether there is
// one that is not dead, and one that is. Of a record that a person sends again, its first age is
// not how late it is.
//
// Each lane has a part with its number: MySQL does not read an index in its order for the lane of
// an outer row.
func (s *Store) aside(ctx context.Context, q db.Querier, at int64, lanes []store.Lane) (late []time.Duration, some [2][]bool, err error) {
	late, some = make([]time.Duration, len(lanes)), [2][]bool{make([]bool, len(lanes)), make([]bool, len(lanes))}
	const atOnce = 64
	for few := range slices.Chunk(lanes, atOnce) {
		var parts []string
		var args []any
		for _, lane := range few {
			parts = append(parts, `(SELECT lane, 0 AS dead, expected FROM postrider_parked FORCE INDEX (of_late) WHERE pipe = ? AND lane = ? ORDER BY expected LIMIT 1)`,
				`(SELECT lane, 1, seq FROM postrider_parked FORCE INDEX (of_lane) WHERE pipe = ? AND lane = ? AND state = 'dead' ORDER BY seq LIMIT 1)`)
			args = append(args, s.box.Pipe, lane, s.box.Pipe, lane)
		}
		err := each(ctx, q, strings.Join(parts, " UNION ALL "), args, func(lane store.Lane, kind int, found int64) {
			switch {
			case kind == 1:
				some[1][lane] = true
			case found < never:
				some[0][lane], late[lane] = true, max(0, -db.Until(at, found))
			}
		})
		if err != nil {
			return late, some, err
		}
	}
	return late, some, nil
}

// each reads rows of a lane and two numbers.
func each(ctx context.Context, q db.Querier, query string, args []any, take func(lane store.Lane, kind int, found int64)) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var lane store.Lane
		var kind int
		var found int64
		if err := rows.Scan(&lane, &kind, &found); err != nil {
			return err
		}
		take(lane, kind, found)
	}
	return rows.Err()
}

// parkedCounts counts what is set aside, by an index that has all that is read.
func (s *Store) parkedCounts(ctx context.Context, q db.Querier, st *ops.Status, aside [2][]bool) error {
	limit := ops.ParkedLimit(s.opts.CountLimit)
	var parts []string
	var args []any
	for state := store.Scheduled; state <= store.Dead; state++ {
		parts = append(parts, `(SELECT lane, state FROM postrider_parked FORCE INDEX (of_state) WHERE pipe = ? AND state = ? ORDER BY seq LIMIT ?)`)
		args = append(args, s.box.Pipe, state.String(), limit)
	}
	rows, err := q.QueryContext(ctx, `SELECT lane, state, COUNT(*) FROM (`+strings.Join(parts, " UNION ALL ")+`) AS x GROUP BY lane, state`, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var found []ops.ParkedIn
	for rows.Next() {
		var one ops.ParkedIn
		if err := rows.Scan(&one.Lane, &one.State, &one.N); err != nil {
			return err
		}
		found = append(found, one)
	}
	st.AddParked(found, aside, limit)
	return rows.Err()
}
