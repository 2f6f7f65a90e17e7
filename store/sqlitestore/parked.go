package sqlitestore

import (
	"context"

	"github.com/postrider/postrider/store"
)

// ready is every parked record of a pipe that becomes due by itself: those
// without a key or not in their key's queue, scheduled ones of free keys, and
// the head of each queue. A dead record never does. The queue of a key are its
// capturing and waiting records. Parameters: the pipe, twice.
const ready = `(WITH heads AS (
		SELECT key, lane, min(seq) AS head FROM postrider_parked
		WHERE pipe = ? AND key <> '' AND (captures OR state = 'waiting') GROUP BY lane, key)
	SELECT p.* FROM postrider_parked p LEFT JOIN heads h ON h.lane = p.lane AND h.key = p.key
	WHERE p.pipe = ? AND p.state <> 'dead' AND CASE
		WHEN p.key = '' THEN 1
		WHEN p.state = 'scheduled' THEN h.head IS NULL
		WHEN p.captures OR p.state = 'waiting' THEN h.head = p.seq
		ELSE 1 END)`

// due is what is due of a lane: its place in its key's queue, or 1, and since when
// the head of that queue is due. A record of a queue flows when none up to it is
// dead or has its time before it. Parameters: the time, the pipe, the lane.
const due = `(WITH relevant AS (
		SELECT pipe, key, seq, state, due_at, key <> '' AND (captures OR state = 'waiting') AS chained,
			state <> 'dead' AND due_at <= ? AS live
		FROM postrider_parked WHERE pipe = ? AND lane = ? AND (captures OR state <> 'dead')),
	placed AS (
		SELECT *, row_number() OVER queue AS number, min(live) OVER queue AS flows, first_value(due_at) OVER queue AS first_due,
			max(chained) OVER (PARTITION BY key) AS held
		FROM relevant WINDOW queue AS (PARTITION BY key, chained ORDER BY seq))
	SELECT pipe, seq, CASE WHEN chained THEN number ELSE 1 END AS place, CASE WHEN chained THEN first_due ELSE due_at END AS since
	FROM placed WHERE CASE WHEN chained THEN flows WHEN state = 'scheduled' THEN live AND NOT held ELSE live END)`

// skipped is every dead letter that left a hole in its key's versions: run is
// the same for versions without a number between them. Parameter: the pipe.
const skipped = `(SELECT lane, key, version, version + dense_rank() OVER (PARTITION BY lane, key ORDER BY version DESC) AS run
	FROM postrider_parked WHERE pipe = ? AND state = 'dead' AND NOT captures AND key <> '' AND version > 0)`

func (s *Store) readParked(ctx context.Context, r store.LaneRead, b *store.Batch) error {
	rows, err := s.db.QueryContext(ctx, `SELECT seq, state, attempts, generation, `+messageColumns+` FROM `+due+`
		JOIN postrider_parked USING (pipe, seq) ORDER BY place, since, seq LIMIT ?`, micros(s.now()), s.opts.Pipe, r.Lane, limit(r))
	if err != nil {
		return err
	}
	defer rows.Close()
	p := page{r: r, b: b}
	for rows.Next() && !b.More {
		var meta store.Meta
		var state string
		m, err := scanMessage(rows, []any{&meta.Seq, &state, &meta.Attempts, &meta.Generation}, nil)
		if err != nil {
			return err
		}
		meta.State = stateOf(state)
		p.add(m, meta)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if err := rows.Close(); err != nil { // the next queries may need its connection
		return err
	}
	lane := []store.LaneGrant{{Lane: r.Lane}}
	err = s.views(ctx, s.db, "", lane)
	b.Parked = lane[0].Parked
	return err
}

func stateOf(name string) store.State {
	for state := store.Scheduled; state <= store.Dead; state++ {
		if state.String() == name {
			return state
		}
	}
	return store.Pending
}

// views fills in what is parked in some lanes: those of a boot id, or one.
func (s *Store) views(ctx context.Context, q querier, boot string, lanes []store.LaneGrant) error {
	if len(lanes) == 0 {
		return nil
	}
	where := "lane IN (SELECT lane FROM postrider_progress WHERE pipe = ? AND owner = ?)"
	args := []any{s.opts.Pipe, boot}
	if boot == "" {
		where, args = "lane = ?", []any{lanes[0].Lane}
	}
	byLane := map[store.Lane]*store.ParkedView{}
	for i := range lanes {
		byLane[lanes[i].Lane] = &lanes[i].Parked
	}
	rows, err := q.QueryContext(ctx, `SELECT lane, 0, '', count(*), 0 FROM postrider_parked WHERE pipe = ? AND `+where+` GROUP BY lane
		UNION ALL SELECT lane, 1, key, 0, 0 FROM (SELECT DISTINCT lane, key FROM postrider_parked
			WHERE pipe = ? AND key <> '' AND (captures OR state = 'waiting') AND `+where+` ORDER BY lane, key)
		UNION ALL SELECT lane, 2, '', min(due_at), 0 FROM `+ready+` WHERE `+where+` GROUP BY lane
		UNION ALL SELECT * FROM (SELECT lane, 3, key, min(version), max(version) FROM `+skipped+` WHERE `+where+`
			GROUP BY lane, key, run ORDER BY lane, key, run)`,
		concat([]any{s.opts.Pipe}, args, []any{s.opts.Pipe}, args, []any{s.opts.Pipe, s.opts.Pipe}, args, []any{s.opts.Pipe}, args)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var lane store.Lane
		var what int
		var key string
		var n, last int64
		if err := rows.Scan(&lane, &what, &key, &n, &last); err != nil {
			return err
		}
		v := byLane[lane]
		switch {
		case v == nil:
		case what == 0:
			v.Records = int(n)
		case what == 1:
			v.Captured = append(v.Captured, key)
		case what == 3:
			v.Gaps = append(v.Gaps, store.Gap{Key: key, First: n, Last: last})
		default:
			v.NextDue, v.HasDue = s.until(n), true
		}
	}
	return rows.Err()
}

func concat(lists ...[]any) []any {
	var out []any
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}
