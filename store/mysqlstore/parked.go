package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// inQueue is true of a record that stands in its key's queue.
const inQueue = "(`key` <> '' AND (captures OR state = 'waiting'))"

// dueTime is when a record becomes due. A record of a queue that failed, or began to
// wait, in the future was parked before the clock was set back. Its time is as far
// ahead as the clock was, so it is due now.
const dueTime = "CASE WHEN " + inQueue + " AND CASE state WHEN 'retry' THEN last_attempt WHEN 'waiting' THEN due_at END > " + db.Now + " + 1000000 THEN 0 ELSE due_at END"

// held is true of a record of table alias k that a person has paused, by its key or its lane.
func held(k string) string {
	return "EXISTS (SELECT 1 FROM postrider_hold f WHERE f.pipe = " + k + ".pipe AND f.lane = " + k + ".lane AND f.`key` IN ('', " + k + ".`key`))"
}

// ready is every parked record of some lanes that becomes due by itself: those
// without a key or not in their key's queue, scheduled ones of free keys, and
// the head of each queue. A dead record never does. %s: the lanes. Parameter: the pipe.
//
//nolint:gochecknoglobals // a constant, but for the call of held
var ready = "(SELECT *, " + dueTime + " AS due FROM (" +
	"SELECT *, MIN(CASE WHEN " + inQueue + " THEN seq END) OVER (PARTITION BY lane, `key`) AS head" +
	" FROM postrider_parked WHERE pipe = ? AND lane IN (%s)) AS h" +
	" WHERE state <> 'dead' AND CASE WHEN `key` = '' THEN 1 WHEN state = 'scheduled' THEN head IS NULL WHEN " + inQueue + " THEN head = seq ELSE 1 END AND NOT " + held("h") + ") AS ready"

// dueRecords is what is due of a lane: its place in its key's queue, or 1, and since when
// the head of that queue is due. A record of a queue flows when none up to it is
// dead or has its time before it. Parameters: the pipe, the lane.
//
//nolint:gochecknoglobals // a constant, but for the call of held
var dueRecords = "(SELECT pipe, seq, chained, (chained AND seq = final) AS ends, CASE WHEN chained THEN nth ELSE 1 END AS place," +
	" CASE WHEN chained THEN first_due ELSE due END AS since FROM (" +
	"SELECT *, ROW_NUMBER() OVER (PARTITION BY `key`, chained ORDER BY seq) AS nth, MIN(live) OVER (PARTITION BY `key`, chained ORDER BY seq) AS flows," +
	" FIRST_VALUE(due) OVER (PARTITION BY `key`, chained ORDER BY seq) AS first_due," +
	" MAX(chained) OVER (PARTITION BY `key`) AS held, MAX(seq) OVER (PARTITION BY `key`, chained) AS final FROM (" +
	"SELECT *, (state <> 'dead' AND due <= " + db.Now + ") AS live FROM (" +
	"SELECT pipe, `key`, seq, state, " + dueTime + " AS due, " + inQueue + " AS chained" +
	" FROM postrider_parked r WHERE pipe = ? AND lane = ? AND (captures OR state <> 'dead') AND NOT " + held("r") + ") AS timed) AS relevant) AS placed" +
	" WHERE CASE WHEN chained THEN flows WHEN state = 'scheduled' THEN live AND NOT held ELSE live END) AS due"

func (s *Store) readParked(ctx context.Context, q db.Querier, p *page) error {
	r, b := p.r, p.b
	if r.Keys != nil { // first: what becomes due between two queries is found by the second or announced
		if err := s.nextSingle(ctx, q, r, b); err != nil {
			return err
		}
		return s.readDue(ctx, q, p)
	}
	if err := s.readDue(ctx, q, p); err != nil {
		return err
	}
	at, err := s.box.Clock(ctx, q)
	if err != nil {
		return err
	}
	lane := []store.LaneGrant{{Lane: r.Lane}}
	err = s.views(ctx, q, at, lane)
	b.Parked = lane[0].Parked
	return err
}

// readDue reads what is due; when the read names queues, of each its share.
func (s *Store) readDue(ctx context.Context, q db.Querier, p *page) error {
	r, b := p.r, p.b
	share, named, args := -1, "", []any{s.box.Pipe, r.Lane}
	if r.Keys != nil {
		share = max(r.MaxRecords/max(len(r.Keys), 1), 1)
		keys := "NULL"
		if len(r.Keys) > 0 {
			keys = strings.TrimSuffix(strings.Repeat("?,", len(r.Keys)), ",")
		}
		named = fmt.Sprintf(" WHERE NOT due.chained OR place <= %d AND k.`key` IN (%s)", share+1, keys)
		for _, key := range r.Keys {
			args = append(args, []byte(key))
		}
	}
	rows, err := q.QueryContext(ctx, `SELECT k.seq, k.state, k.attempts, k.generation, k.code, due.chained, due.ends, due.place, `+prefixed(db.MessageColumns)+` FROM `+dueRecords+`
		JOIN postrider_parked k ON k.pipe = due.pipe AND k.seq = due.seq`+named+fmt.Sprintf(` ORDER BY place, since, k.seq LIMIT %d`, limit(r)), args...)
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
		m, err := db.ScanMessage(rows, &meta.Seq, &state, &meta.Attempts, &meta.Generation, &meta.Code, &chained, &ends, &place)
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
	if b.More && share >= 0 { // what was cut off may stand in no queue
		b.Parked.HasDue, b.Parked.NextDue = true, 0
	}
	b.More = b.More || more
	if err := rows.Err(); err != nil {
		return err
	}
	return rows.Close() // the next queries may need its connection
}

// prefixed names the columns of the parked table, k.
func prefixed(columns string) string { return "k." + strings.ReplaceAll(columns, ", ", ", k.") }

// nextSingle tells when the next record that stands in no queue becomes due.
func (s *Store) nextSingle(ctx context.Context, q db.Querier, r store.LaneRead, b *store.Batch) error {
	var at sql.NullInt64
	var here int64
	err := q.QueryRowContext(ctx, `SELECT MIN(due), `+db.Now+` FROM `+fmt.Sprintf(ready, db.Numbers([]store.Lane{r.Lane}))+` WHERE due > `+db.Now+` AND NOT `+inQueue,
		s.box.Pipe).Scan(&at, &here)
	if at.Valid {
		b.Parked.HasDue, b.Parked.NextDue = true, db.Until(here, at.Int64)
	}
	return err
}

// views fills in what is parked in the lanes that are unknown. at is the server's time.
func (s *Store) views(ctx context.Context, q db.Querier, at int64, lanes []store.LaneGrant) error {
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
	in, pipe := db.Numbers(ids), s.box.Pipe
	rows, err := q.QueryContext(ctx, "SELECT lane, 0 AS what, '' AS k, COUNT(*) AS n, 0 AS last_one FROM postrider_parked WHERE pipe = ? AND lane IN ("+in+") GROUP BY lane"+
		" UNION ALL SELECT lane, 1, `key`, seq, CASE WHEN state = 'dead' OR "+held("q")+" THEN NULL ELSE due END FROM ("+
		"SELECT pipe, lane, `key`, seq, state, "+dueTime+" AS due, ROW_NUMBER() OVER (PARTITION BY lane, `key` ORDER BY seq) AS nth"+
		" FROM postrider_parked WHERE pipe = ? AND lane IN ("+in+") AND "+inQueue+") AS q WHERE nth = 1"+
		" UNION ALL SELECT f.lane, CASE WHEN f.`key` = '' THEN 4 ELSE 1 END, f.`key`, 0, NULL FROM postrider_hold f WHERE f.pipe = ? AND f.lane IN ("+in+")"+
		" AND NOT EXISTS (SELECT 1 FROM postrider_parked WHERE pipe = f.pipe AND lane = f.lane AND `key` = f.`key` AND "+inQueue+")"+
		" UNION ALL SELECT lane, 2, '', MIN(due), 0 FROM "+fmt.Sprintf(ready, in)+" GROUP BY lane"+
		" UNION ALL SELECT lane, 3, `key`, MIN(version), MAX(version) FROM ("+
		"SELECT lane, `key`, version, version + DENSE_RANK() OVER (PARTITION BY lane, `key` ORDER BY version DESC) AS run"+
		" FROM postrider_parked WHERE pipe = ? AND lane IN ("+in+") AND state = 'dead' AND NOT captures AND `key` <> '' AND version > 0) AS g GROUP BY lane, `key`, run"+
		" ORDER BY 1, 2, 3, 4", pipe, pipe, pipe, pipe, pipe)
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
				h.DueIn = db.Until(at, last.Int64)
			}
			v.Captured, v.Heads = append(v.Captured, key), append(v.Heads, h)
		case what == 4:
			v.Paused = true
		case what == 3:
			v.Gaps = append(v.Gaps, store.Gap{Key: key, First: n, Last: last.Int64})
		default:
			v.NextDue, v.HasDue = db.Until(at, n), true
		}
	}
	return rows.Err()
}
