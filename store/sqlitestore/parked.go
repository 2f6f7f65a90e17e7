package sqlitestore

import (
	"context"
	"encoding/json"

	"github.com/postrider/postrider/store"
)

// inLanes chooses the lanes of a list in JSON.
const inLanes = `lane IN (SELECT value FROM json_each(?))`

// ready is every parked record of some lanes that becomes due by itself: those
// without a key or not in their key's queue, scheduled ones of free keys, and
// the head of each queue. A dead record never does. The queue of a key are its
// capturing and waiting records. Parameters: the pipe and the lanes, twice.
const ready = `(WITH heads AS (
		SELECT key, lane, min(seq) AS head FROM postrider_parked
		WHERE pipe = ? AND ` + inLanes + ` AND key <> '' AND (captures OR state = 'waiting') GROUP BY lane, key)
	SELECT p.* FROM postrider_parked p LEFT JOIN heads h ON h.lane = p.lane AND h.key = p.key
	WHERE p.pipe = ? AND p.` + inLanes + ` AND p.state <> 'dead' AND CASE
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
// the same for versions without a number between them. Parameters: the pipe and the lanes.
const skipped = `(SELECT lane, key, version, version + dense_rank() OVER (PARTITION BY lane, key ORDER BY version DESC) AS run
	FROM postrider_parked WHERE pipe = ? AND ` + inLanes + ` AND state = 'dead' AND NOT captures AND key <> '' AND version > 0)`

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
	err = s.views(ctx, s.db, lane)
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

// views fills in what is parked in the lanes that are not known.
func (s *Store) views(ctx context.Context, q querier, lanes []store.LaneGrant) error {
	byLane := map[store.Lane]*store.ParkedView{}
	var ids []store.Lane
	for i := range lanes {
		if !lanes[i].Known {
			byLane[lanes[i].Lane] = &lanes[i].Parked
			ids = append(ids, lanes[i].Lane)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	in, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	pipe, some := s.opts.Pipe, string(in)
	rows, err := q.QueryContext(ctx, `SELECT lane, 0, '', count(*), 0 FROM postrider_parked WHERE pipe = ? AND `+inLanes+` GROUP BY lane
		UNION ALL SELECT lane, 1, key, 0, 0 FROM (SELECT DISTINCT lane, key FROM postrider_parked
			WHERE pipe = ? AND `+inLanes+` AND key <> '' AND (captures OR state = 'waiting') ORDER BY lane, key)
		UNION ALL SELECT lane, 2, '', min(due_at), 0 FROM `+ready+` GROUP BY lane
		UNION ALL SELECT * FROM (SELECT lane, 3, key, min(version), max(version) FROM `+skipped+`
			GROUP BY lane, key, run ORDER BY lane, key, run)`,
		pipe, some, pipe, some, pipe, some, pipe, some, pipe, some)
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
