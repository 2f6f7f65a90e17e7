package views

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// The table of parked records is read in the order of its index of_queue. queue is the key of a record
// that stands in its key's queue, and empty for other records. place is the number of a record in a
// queue, and for another one the time when it becomes due, NULL if it is dead.
const ordered = " FORCE INDEX (of_queue)"

// single is true of a record s in no queue that waits for its time alone: neither its lane nor its key is
// paused, and if it is scheduled its key has no queue. Parameter: the pipe.
const single = "postrider_parked s" + ordered + " WHERE s.pipe = ? AND s.lane = %d AND s.queue = ''" +
	" AND NOT EXISTS (SELECT 1 FROM postrider_hold f WHERE f.pipe = s.pipe AND f.lane = s.lane AND f.`key` IN ('', s.`key`))" +
	" AND (s.state <> 'scheduled' OR s.`key` = '' OR NOT EXISTS" +
	" (SELECT 1 FROM postrider_parked q" + ordered + " WHERE q.pipe = s.pipe AND q.lane = s.lane AND q.queue = s.`key`))"

// queued is a record of a queue.
type queued struct {
	seq    int64
	state  store.State
	due    int64         // by its row
	failed sql.NullInt64 // when it failed last
}

// dueAt returns when the record becomes due by itself, false for never. A record that failed, or began to
// wait, in the future was parked before the clock was set back. Its time is as far ahead as the clock
// was, so it is due now.
func (r *queued) dueAt(now int64) (us int64, ok bool) {
	const slack = 1_000_000
	if r.state == store.Dead {
		return 0, false
	}
	if r.state == store.Retry && r.failed.Int64 > now+slack || r.state == store.Waiting && r.due > now+slack {
		return 0, true
	}
	return r.due, true
}

// Kinds of rows, in the order in which they are read.
const (
	isClock = iota
	isHold
	isQueue
	isSingle
	isGap
)

// Of fills in the view of one lane. The server ends the statement when ctx ends.
func (s *Views) Of(ctx context.Context, q db.Querier, lane store.Lane, v *store.ParkedView) error {
	return s.read(ctx, q, db.SelectUntil(ctx), []store.Lane{lane}, map[store.Lane]*store.ParkedView{lane: v})
}

// read reads some lanes' views by a statement that begins with word. It passes each record once, in the
// index, which counts the records and finds the first ones of queues.
func (s *Views) read(ctx context.Context, q db.Querier, word string, lanes []store.Lane, views map[store.Lane]*store.ParkedView) error {
	in := db.Numbers(lanes)
	parts := []string{
		fmt.Sprintf("%s -1 AS lane, %d AS what, '' AS k, %s AS a, 0 AS b, '' AS state, 0 AS due, 0 AS failed", word, isClock, db.Now),
		fmt.Sprintf("SELECT lane, %d, `key`, 0, 0, '', 0, 0 FROM postrider_hold WHERE pipe = ? AND lane IN (%s)", isHold, in),
		fmt.Sprintf("SELECT h.lane, %d, h.queue, h.records, k.seq, COALESCE(k.state, ''), k.due_at, k.last_attempt FROM (SELECT lane, queue, MIN(place) AS head, COUNT(*) AS records"+
			" FROM postrider_parked"+ordered+" WHERE pipe = ? AND lane IN (%s) GROUP BY lane, queue) AS h"+
			" LEFT JOIN postrider_parked k ON h.queue <> '' AND k.pipe = ? AND k.seq = h.head", isQueue, in),
		// MIN and MAX over windows are not used: the servers compare each row with all others.
		fmt.Sprintf("SELECT lane, %d, `key`, MIN(version), MAX(version), '', 0, 0 FROM ("+
			"SELECT lane, `key`, version, version + DENSE_RANK() OVER (PARTITION BY lane, `key` ORDER BY version DESC) AS run"+
			" FROM postrider_parked WHERE pipe = ? AND lane IN (%s) AND state = 'dead' AND NOT captures AND `key` <> '' AND version > 0) AS g GROUP BY lane, `key`, run", isGap, in),
	}
	args := []any{s.Pipe, s.Pipe, s.Pipe, s.Pipe}
	for _, lane := range lanes {
		*views[lane] = store.ParkedView{} // the rows of a canceled statement
		parts = append(parts, fmt.Sprintf("(SELECT %d, %d, '', 0, 0, '', s.place, 0 FROM "+single+" AND s.place IS NOT NULL ORDER BY s.place, s.seq LIMIT 1)", lane, isSingle, lane))
		args = append(args, s.Pipe)
	}
	rows, err := q.QueryContext(ctx, strings.Join(parts, " UNION ALL ")+" ORDER BY 1, 2, 3, 4", args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	now, idle := int64(0), map[store.Lane][]string{} // paused keys without a queue
	for rows.Next() {
		var lane store.Lane
		var what int
		var key, state string
		var a int64
		var seq, due sql.NullInt64
		var r queued
		if err := rows.Scan(&lane, &what, &key, &a, &seq, &state, &due, &r.failed); err != nil {
			return err
		}
		r.seq, r.state, r.due = seq.Int64, db.StateOf(state), due.Int64
		v := views[lane]
		switch {
		case what == isClock:
			now = a
		case what == isHold && key == "":
			v.Paused = true
		case what == isHold:
			idle[lane] = append(idle[lane], key)
		case what == isSingle:
			wakes(v, db.Until(now, r.due))
		case what == isGap:
			v.Gaps = append(v.Gaps, store.Gap{Key: key, First: a, Last: r.seq})
		default:
			v.Records += int(a)
			if key == "" {
				break
			}
			h := store.Head{Seq: r.seq}
			at, paused := slices.BinarySearch(idle[lane], key)
			if paused {
				idle[lane] = slices.Delete(idle[lane], at, at+1)
			}
			if us, ok := r.dueAt(now); ok && !paused && !v.Paused {
				h.HasDue, h.DueIn = true, db.Until(now, us)
				wakes(v, h.DueIn)
			}
			v.Captured, v.Heads = append(v.Captured, key), append(v.Heads, h)
		}
	}
	for lane, keys := range idle {
		v := views[lane]
		for _, key := range keys {
			at, _ := slices.BinarySearch(v.Captured, key)
			v.Captured, v.Heads = slices.Insert(v.Captured, at, key), slices.Insert(v.Heads, at, store.Head{})
		}
	}
	return rows.Err()
}

// wakes notes that a record becomes due after a time.
func wakes(v *store.ParkedView, in time.Duration) {
	if !v.HasDue || in < v.NextDue {
		v.HasDue, v.NextDue = true, in
	}
}
