package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// inLanes chooses the lanes of a list in JSON.
const inLanes = `lane IN (SELECT value FROM json_each(?))`

// paused is true of a record k that a person has paused, by its key or its lane. As a rule nothing
// is paused, which is found out once.
const paused = `EXISTS (SELECT 1 FROM postrider_hold) AND EXISTS (SELECT 1 FROM postrider_hold f
	WHERE f.pipe = k.pipe AND f.lane = k.lane AND f.key IN ('', k.key))`

// ready is every parked record of some lanes that becomes due by itself: those
// without a key or not in their key's queue, scheduled ones of free keys, and
// the head of each queue. A dead or paused record never does. The queue of a key are its
// capturing and waiting records. Parameters: the pipe and the lanes, twice.
const ready = `(WITH heads AS (
		SELECT key, lane, min(seq) AS head FROM postrider_parked
		WHERE pipe = ? AND ` + inLanes + ` AND key <> '' AND (captures OR state = 'waiting') GROUP BY lane, key)
	SELECT k.* FROM postrider_parked k LEFT JOIN heads h ON h.lane = k.lane AND h.key = k.key
	WHERE k.pipe = ? AND k.` + inLanes + ` AND k.state <> 'dead' AND CASE
		WHEN k.key = '' THEN 1
		WHEN k.state = 'scheduled' THEN h.head IS NULL
		WHEN k.captures OR k.state = 'waiting' THEN h.head = k.seq
		ELSE 1 END AND NOT (` + paused + `))`

// inQueue is true of a record that stands in its key's queue.
const inQueue = `key <> '' AND (captures OR state = 'waiting')`

// dueTime is when a record becomes due. A record of a queue that failed, or began to
// wait, in the future was parked before the clock was set back. Its time is as far
// ahead as the clock was, so it is due now. Parameter: the latest time that counts,
// which is that of latest.
const dueTime = `CASE WHEN ` + inQueue + ` AND CASE state WHEN 'retry' THEN last_attempt WHEN 'waiting' THEN due_at END > ? THEN 0 ELSE due_at END AS due_at`

// latest is the latest time at which a record can have been parked by this clock.
func (s *Store) latest() int64 { return db.Micros(s.box.Now().Add(time.Second)) }

// due is what is due of a lane: its place in its key's queue, or 1, and since when
// the head of that queue is due. A record of a queue flows when none up to it is
// dead or has its time before it. Nothing of a paused key or lane is due. Parameters: the time, the latest time that counts
// (see dueTime), the pipe, the lane.
const due = `(WITH relevant AS (
		SELECT *, state <> 'dead' AND due_at <= ? AS live FROM (
			SELECT pipe, key, seq, state, ` + dueTime + `, ` + inQueue + ` AS chained
			FROM postrider_parked k WHERE pipe = ? AND lane = ? AND (captures OR state <> 'dead') AND NOT (` + paused + `))),
	placed AS (
		SELECT *, row_number() OVER queue AS number, min(live) OVER queue AS flows, first_value(due_at) OVER queue AS first_due,
			max(chained) OVER (PARTITION BY key) AS held, max(seq) OVER (PARTITION BY key, chained) AS last
		FROM relevant WINDOW queue AS (PARTITION BY key, chained ORDER BY seq))
	SELECT pipe, seq, chained, chained AND seq = last AS ends, CASE WHEN chained THEN number ELSE 1 END AS place, CASE WHEN chained THEN first_due ELSE due_at END AS since
	FROM placed WHERE CASE WHEN chained THEN flows WHEN state = 'scheduled' THEN live AND NOT held ELSE live END)`

// skipped is every dead letter that left a hole in its key's versions: run is
// the same for versions without a number between them. Parameters: the pipe and the lanes.
const skipped = `(SELECT lane, key, version, version + dense_rank() OVER (PARTITION BY lane, key ORDER BY version DESC) AS run
	FROM postrider_parked WHERE pipe = ? AND ` + inLanes + ` AND state = 'dead' AND NOT captures AND key <> '' AND version > 0)`

func (s *Store) readParked(ctx context.Context, p *page) error {
	r, b, now := p.r, p.b, db.Micros(s.box.Now())
	if r.Keys != nil { // of one moment: the clock may be set back between two queries
		if err := s.nextSingle(ctx, r, b, now); err != nil {
			return err
		}
		return s.readDue(ctx, p, now)
	}
	if err := s.readDue(ctx, p, now); err != nil {
		return err
	}
	lane := []store.LaneGrant{{Lane: r.Lane}}
	err := s.views(ctx, s.box.DB, lane)
	b.Parked = lane[0].Parked
	return err
}

// readDue reads what is due at a time; when the read names queues, of each its share. It names
// them by their bytes: JSON has no text that is not UTF-8, and a key may be one.
func (s *Store) readDue(ctx context.Context, p *page, now int64) error {
	r, b := p.r, p.b
	share, named := -1, ""
	if r.Keys != nil {
		share = max(r.MaxRecords/max(len(r.Keys), 1), 1)
		keys := make([]string, len(r.Keys))
		for i, key := range r.Keys {
			keys[i] = hex.EncodeToString([]byte(key))
		}
		text, err := json.Marshal(keys)
		if err != nil {
			return err
		}
		named = string(text)
	}
	rows, err := s.box.DB.QueryContext(ctx, `SELECT seq, state, attempts, generation, code, due.chained, due.ends, place, `+db.MessageColumns+` FROM `+due+` AS due
		JOIN postrider_parked USING (pipe, seq) WHERE ? < 0 OR NOT due.chained OR place <= ? + 1 AND key IN (SELECT CAST(unhex(value) AS TEXT) FROM json_each(?))
		ORDER BY place, since, seq LIMIT ?`, now, s.latest(), s.box.Pipe, r.Lane, share, share, named, limit(r))
	if err != nil {
		return err
	}
	defer rows.Close()
	more := false
	for rows.Next() && !b.More {
		var meta store.Meta
		var state string
		var chained, ends bool
		var place int
		m, err := db.ScanMessage(rows, []any{&meta.Seq, &state, &meta.Attempts, &meta.Generation, &meta.Code, &chained, &ends, &place}, nil)
		if err != nil {
			return err
		}
		if share >= 0 && chained && place > share {
			more = true
			continue
		}
		meta.State, meta.Last = db.StateOf(state), ends
		p.add(m, meta)
	}
	if b.More && share >= 0 { // records that were cut off may be in no queue
		b.Parked.HasDue, b.Parked.NextDue = true, 0
	}
	b.More = b.More || more
	if err := rows.Err(); err != nil {
		return err
	}
	return rows.Close() // the next queries may need its connection
}

// nextSingle tells when the next record that stands in no queue becomes due, after a time.
func (s *Store) nextSingle(ctx context.Context, r store.LaneRead, b *store.Batch, now int64) error {
	var at sql.NullInt64
	lane := fmt.Sprintf("[%d]", r.Lane)
	err := s.box.DB.QueryRowContext(ctx, `SELECT min(due_at) FROM `+ready+` WHERE due_at > ? AND NOT (`+inQueue+`)`,
		s.box.Pipe, lane, s.box.Pipe, lane, now).Scan(&at)
	if at.Valid {
		b.Parked.HasDue, b.Parked.NextDue = true, s.box.Until(at.Int64)
	}
	return err
}

// views fills in what is parked in the lanes that are unknown.
func (s *Store) views(ctx context.Context, q db.Querier, lanes []store.LaneGrant) error {
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
	pipe, some := s.box.Pipe, string(in)
	rows, err := q.QueryContext(ctx, `SELECT lane, 0, '', count(*), 0 FROM postrider_parked WHERE pipe = ? AND `+inLanes+` GROUP BY lane
		UNION ALL SELECT * FROM (SELECT lane, 1, key, seq, CASE WHEN state = 'dead' OR `+paused+` THEN NULL ELSE due_at END
				FROM (SELECT pipe, lane, key, min(seq) AS seq, state, `+dueTime+` FROM postrider_parked WHERE pipe = ? AND `+inLanes+` AND `+inQueue+` GROUP BY lane, key) k
			UNION ALL SELECT lane, 1, key, 0, NULL FROM postrider_hold f WHERE pipe = ? AND `+inLanes+` AND key <> ''
				AND NOT EXISTS (SELECT 1 FROM postrider_parked k WHERE k.pipe = f.pipe AND k.lane = f.lane AND k.key = f.key AND (k.captures OR k.state = 'waiting'))
			ORDER BY 1, 3)
		UNION ALL SELECT lane, 4, '', 0, 0 FROM postrider_hold WHERE pipe = ? AND `+inLanes+` AND key = ''
		UNION ALL SELECT lane, 2, '', min(due_at), 0 FROM (SELECT lane, `+dueTime+` FROM `+ready+`) GROUP BY lane
		UNION ALL SELECT * FROM (SELECT lane, 3, key, min(version), max(version) FROM `+skipped+`
			GROUP BY lane, key, run ORDER BY lane, key, run)`,
		pipe, some, s.latest(), pipe, some, pipe, some, pipe, some, s.latest(), pipe, some, pipe, some, pipe, some)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var lane store.Lane
		var what int
		var key string
		var n int64
		var last sql.NullInt64
		if err := rows.Scan(&lane, &what, &key, &n, &last); err != nil {
			return err
		}
		v := byLane[lane]
		switch {
		case v == nil:
		case what == 0:
			v.Records = int(n)
		case what == 1:
			h := store.Head{Seq: n, HasDue: last.Valid}
			if h.HasDue {
				h.DueIn = s.box.Until(last.Int64)
			}
			v.Captured, v.Heads = append(v.Captured, key), append(v.Heads, h)
		case what == 4:
			v.Paused = true
		case what == 3:
			v.Gaps = append(v.Gaps, store.Gap{Key: key, First: n, Last: last.Int64})
		default:
			v.NextDue, v.HasDue = s.box.Until(n), true
		}
	}
	return rows.Err()
}
