// Package operations is what people ask and order while a relay works: status, parked
// records, acts and samples.
package operations

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// Admin looks at one pipe of an outbox and stores acts for the owners of its lanes. It
// is safe for concurrent use.
type Admin struct {
	*db.Outbox
	countLimit int
	lane       func(key, id string, lanes int) store.Lane
}

// NewAdmin returns the admin of a pipe, whose status counts at most so many rows of a
// lane. lane computes the lane of a key as the outbox does. It does no I/O.
func NewAdmin(o *db.Outbox, countLimit int, lane func(key, id string, lanes int) store.Lane) *Admin {
	return &Admin{o, countLimit, lane}
}

// Status implements ops.Admin. It reads one snapshot and changes nothing.
func (s *Admin) Status(ctx context.Context) (ops.Status, error) {
	st := ops.Status{Pipe: s.Pipe, Parked: map[string]int64{}}
	tx, err := s.Snapshot(ctx)
	if err != nil {
		return st, err
	}
	defer tx.End()
	var g store.Grant
	if err := s.Info(ctx, tx.Conn, &g); err != nil {
		return st, s.Wrap("status", err)
	}
	if err := s.Knows(ctx, tx.Conn, db.Pipes); err != nil {
		return st, s.Wrap("status", err)
	}
	st.Identity = g.Identity
	for _, part := range []func(context.Context, db.Querier, *ops.Status) error{s.instances, s.laneStates, s.laneCounts, s.heldBy} {
		if err := part(ctx, tx.Conn, &st); err != nil {
			return st, s.Wrap("status", err)
		}
	}
	return st, nil
}

// heldBy is what people have paused or stopped.
func (s *Admin) heldBy(ctx context.Context, q db.Querier, st *ops.Status) error {
	_, paused, err := s.Set(ctx, q)
	if err != nil {
		return err
	}
	st.Paused = paused.Valid
	if st.Holds, err = s.holds(ctx, q, ""); err != nil {
		return err
	}
	st.Stops, err = stopped(ctx, s.Outbox, q)
	return err
}

func (s *Admin) instances(ctx context.Context, q db.Querier, st *ops.Status) error {
	rows, err := q.QueryContext(ctx, `SELECT boot_id, instance, CASE WHEN alive_until <= ? + 2 * ttl THEN alive_until ELSE 0 END,
		(SELECT count(*) FROM postrider_progress p WHERE p.pipe = r.pipe AND p.owner = r.boot_id),
		trouble, held FROM postrider_relay r WHERE pipe = ? ORDER BY instance, boot_id`, db.Micros(s.Now()), s.Pipe)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var i ops.Instance
		var until int64
		var trouble, held []byte
		if err := rows.Scan(&i.BootID, &i.Name, &until, &i.Lanes, &trouble, &held); err != nil {
			return err
		}
		if err := errors.Join(json.Unmarshal(trouble, &i.Trouble), json.Unmarshal(held, &i.Held)); err != nil {
			return fmt.Errorf("what instance %s reports: %w", i.BootID, err)
		}
		i.AliveFor = max(0, s.Until(until))
		i.Alive = i.AliveFor > 0
		st.Instances = append(st.Instances, i)
	}
	return rows.Err()
}

func (s *Admin) laneStates(ctx context.Context, q db.Querier, st *ops.Status) error {
	rows, err := q.QueryContext(ctx, `SELECT p.lane, coalesce(r.instance, ''), CASE WHEN r.alive_until <= ? + 2 * r.ttl THEN r.alive_until ELSE 0 END, p.epoch, p.delivered,
		nullif(p.settled_at, 0)
		FROM postrider_progress p LEFT JOIN postrider_relay r ON r.pipe = p.pipe AND r.boot_id = p.owner
		WHERE p.pipe = ? ORDER BY p.lane`, db.Micros(s.Now()), s.Pipe)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var l ops.LaneStatus
		var until int64
		var settled sql.NullInt64
		if err := rows.Scan(&l.Lane, &l.Owner, &until, &l.Epoch, &l.Delivered, &settled); err != nil {
			return err
		}
		l.SettledAt = db.Moment(settled)
		if until != 0 {
			l.Until = max(0, s.Until(until))
		}
		l.Leased = l.Until > 0
		st.Delivered += l.Delivered
		st.Lanes = append(st.Lanes, l)
	}
	return rows.Err()
}

// countAhead reads an index alone and no row.
const countAhead = `SELECT count(*), max(seq) FROM (SELECT seq FROM postrider_outbox
	WHERE lane = ?2 AND seq > (SELECT pos FROM postrider_progress WHERE pipe = ?1 AND lane = ?2) ORDER BY seq LIMIT ?3)`

// firstDue reads the rows that are due, up to a limit, from a lane's position to a number. Their
// order is about that of their times, except that scheduled ones may come due before others that
// are older: of those that are not scheduled, the first counts too.
const firstDue = `SELECT min(at) FROM (
	SELECT * FROM (SELECT max(created_at, coalesce(not_before, 0)) AS at FROM postrider_outbox
		WHERE lane = ?2 AND seq > (SELECT pos FROM postrider_progress WHERE pipe = ?1 AND lane = ?2) AND seq <= ?3 AND coalesce(not_before, 0) <= ?4 ORDER BY seq LIMIT ?5)
	UNION ALL
	SELECT * FROM (SELECT created_at AS at FROM postrider_outbox
		WHERE lane = ?2 AND seq > (SELECT pos FROM postrider_progress WHERE pipe = ?1 AND lane = ?2) AND seq <= ?3 AND not_before IS NULL ORDER BY seq LIMIT 1))`

// oldestOf is how many rows of a lane that are due are looked at for the oldest.
const oldestOf = 64

// laneCounts counts what lies behind each lane's cursor, up to the limit.
func (s *Admin) laneCounts(ctx context.Context, q db.Querier, st *ops.Status) error {
	filter, _, err := s.Set(ctx, q)
	if err != nil {
		return err
	}
	aside := [2][]bool{make([]bool, len(st.Lanes)), make([]bool, len(st.Lanes))} // as ops.Status.AddParked has it
	for i := range st.Lanes {
		l := &st.Lanes[i]
		n, seen, oldest, err := s.ahead(ctx, q, filter, l.Lane)
		if err != nil {
			return err
		}
		if oldest.Valid {
			l.Behind = max(0, -s.Until(oldest.Int64))
		}
		edge, err := s.edge(ctx, q, l, seen)
		if err != nil {
			return err
		}
		if aside[0][i], l.Lag, err = s.parkedLag(ctx, q, l.Lane); err != nil {
			return err
		}
		if err := q.QueryRowContext(ctx, someDead, s.Pipe, l.Lane).Scan(&aside[1][i]); err != nil {
			return err
		}
		if l.HeldTopics, err = s.heldTopics(ctx, q, st, l); err != nil {
			return err
		}
		l.LagCapped = edge > max(l.Lag, l.Behind)
		l.Behind = max(l.Behind, edge)
		l.Lag = max(l.Lag, l.Behind)
		l.Pending += n
		st.Pending += l.Pending
		st.AddLag(l)
		st.Capped = st.Capped || seen >= int64(s.countLimit)
	}
	return s.parkedCounts(ctx, q, st, aside)
}

// passing looks at the first rows behind a lane's cursor: how many there are, how many of them
// pass the filter, and since when the oldest of these is due.
func passing() string {
	passes := db.Passes("?4", "o")
	return `SELECT count(*), count(*) FILTER (WHERE ` + passes + `), min(at) FILTER (WHERE ` + passes + `) FROM (
	SELECT topic, type, key, headers, max(created_at, coalesce(not_before, 0)) AS at FROM postrider_outbox
	WHERE lane = ?2 AND seq > (SELECT pos FROM postrider_progress WHERE pipe = ?1 AND lane = ?2) ORDER BY seq LIMIT ?3) o`
}

// ahead counts what lies behind a lane's cursor and is the pipe's. Of a pipe with a filter it has
// seen more rows.
func (s *Admin) ahead(ctx context.Context, q db.Querier, filter string, lane store.Lane) (n, seen int64, oldest sql.NullInt64, err error) {
	if filter != db.Everything {
		err = q.QueryRowContext(ctx, passing(), s.Pipe, lane, s.countLimit, filter).Scan(&seen, &n, &oldest)
		return n, seen, oldest, err
	}
	var last sql.NullInt64
	err = q.QueryRowContext(ctx, countAhead, s.Pipe, lane, s.countLimit).Scan(&n, &last)
	if err == nil && n > 0 {
		err = q.QueryRowContext(ctx, firstDue, s.Pipe, lane, last.Int64, db.Micros(s.Now()), oldestOf).Scan(&oldest)
	}
	return n, n, oldest, err
}

// edge is the age of the first row of a lane that laneCounts does not count, where none of those
// that it counts is due: it bounds the lag.
func (s *Admin) edge(ctx context.Context, q db.Querier, l *ops.LaneStatus, counted int64) (time.Duration, error) {
	if l.Behind > 0 || counted < int64(s.countLimit) {
		return 0, nil
	}
	var at int64
	err := q.QueryRowContext(ctx, `SELECT created_at FROM postrider_outbox
		WHERE lane = ?2 AND seq > (SELECT pos FROM postrider_progress WHERE pipe = ?1 AND lane = ?2) ORDER BY seq LIMIT 1 OFFSET ?3`,
		s.Pipe, l.Lane, s.countLimit).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return max(0, -s.Until(at)), err
}

// heldTopics are the topics of a lane's first messages, and of the first that are set aside,
// that its owner sends nothing to.
func (s *Admin) heldTopics(ctx context.Context, q db.Querier, st *ops.Status, l *ops.LaneStatus) (topics []string, err error) {
	for _, i := range st.Instances {
		if !i.Alive || i.Name != l.Owner {
			continue
		}
		for _, h := range i.Held {
			var there bool
			err := q.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM (SELECT topic FROM postrider_outbox
				WHERE lane = ?2 AND seq > (SELECT pos FROM postrider_progress WHERE pipe = ?1 AND lane = ?2) ORDER BY seq LIMIT 256) WHERE topic = ?3)
				OR EXISTS (SELECT 1 FROM (SELECT topic FROM postrider_parked WHERE pipe = ?1 AND lane = ?2 AND state <> 'dead' ORDER BY `+expected+` LIMIT 256) WHERE topic = ?3)`,
				s.Pipe, l.Lane, h.Destination).Scan(&there)
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

// expected is when a parked record that is not dead was to be sent, as the index
// postrider_parked_late has it. Of one that a person sends again, its first age is not
// how late it is.
const expected = `CASE WHEN state = 'scheduled' THEN due_at WHEN generation > 0 AND first_failed IS NOT NULL THEN first_failed
	ELSE max(created_at, coalesce(not_before, 0)) END`

// parkedLag reports whether a lane has a parked record that is not dead, and how late the oldest
// of them is.
func (s *Admin) parkedLag(ctx context.Context, q db.Querier, lane store.Lane) (some bool, late time.Duration, err error) {
	var oldest sql.NullInt64
	err = q.QueryRowContext(ctx, `SELECT min(at) FROM (SELECT `+expected+` AS at FROM postrider_parked
		WHERE pipe = ? AND lane = ? AND state <> 'dead' ORDER BY `+expected+` LIMIT 1)`, s.Pipe, lane).Scan(&oldest)
	if err != nil || !oldest.Valid {
		return false, 0, err
	}
	return true, max(0, -s.Until(oldest.Int64)), nil
}

// someDead reads one entry of an index.
const someDead = `SELECT EXISTS (SELECT 1 FROM postrider_parked WHERE pipe = ? AND lane = ? AND state = 'dead')`

// countState reads an index alone and no row of a record.
const countState = `SELECT lane, ?2, count(*) FROM (SELECT lane FROM postrider_parked WHERE pipe = ?1 AND state || '' = ?2 ORDER BY seq LIMIT ?3) GROUP BY lane`

// parkedCounts counts what is parked: of each state the first records of the pipe, up to
// ops.ParkedLimit.
func (s *Admin) parkedCounts(ctx context.Context, q db.Querier, st *ops.Status, aside [2][]bool) error {
	limit := ops.ParkedLimit(s.countLimit)
	var all []ops.ParkedIn
	for state := store.Scheduled; state <= store.Dead; state++ {
		found, err := s.parkedOf(ctx, q, state, limit)
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	st.AddParked(all, aside, limit)
	return nil
}

func (s *Admin) parkedOf(ctx context.Context, q db.Querier, state store.State, limit int64) (found []ops.ParkedIn, err error) {
	rows, err := q.QueryContext(ctx, countState, s.Pipe, state.String(), limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var one ops.ParkedIn
		if err := rows.Scan(&one.Lane, &one.State, &one.N); err != nil {
			return nil, err
		}
		found = append(found, one)
	}
	return found, rows.Err()
}
