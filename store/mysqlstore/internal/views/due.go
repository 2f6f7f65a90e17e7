package views

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// Record is a parked record that is due.
type Record struct {
	Seq  int64
	Last bool // nothing stands behind it in its key's queue

	place int   // in its queue, from 1
	since int64 // when its queue became due
}

// Due is what is due of a lane.
type Due struct {
	Records []Record // the first of each queue before the second of any
	More    bool     // a queue has more than its share
	// Next is the time until the next record that stands in no queue becomes due.
	HasNext bool
	Next    time.Duration
}

// DueKeys returns the keys of a view whose queues are due, longest due first.
func DueKeys(v *store.ParkedView) (keys []string) {
	var due []int
	for i, h := range v.Heads {
		if h.HasDue && h.DueIn <= 0 {
			due = append(due, i)
		}
	}
	slices.SortFunc(due, func(a, b int) int {
		return cmp.Or(cmp.Compare(v.Heads[a].DueIn, v.Heads[b].DueIn), cmp.Compare(v.Heads[a].Seq, v.Heads[b].Seq))
	})
	for _, i := range due {
		keys = append(keys, v.Captured[i])
	}
	return keys
}

// Due returns what is due of a lane: of each named queue at most a share, and what stands in no queue, at
// most a number of records. It reads in the order of an index what it returns, and of each queue
// one record more. The server ends the statements when ctx ends.
func (s *Views) Due(ctx context.Context, q db.Querier, lane store.Lane, keys []string, share, most int) (d Due, err error) {
	const atOnce = 100 // queues
	for first := true; first || len(keys) > 0; first = false {
		some := keys[:min(len(keys), atOnce)]
		keys = keys[len(some):]
		if err := s.due(ctx, q, lane, first, some, share, most, &d); err != nil {
			return d, err
		}
	}
	slices.SortFunc(d.Records, func(a, b Record) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.since, b.since), cmp.Compare(a.Seq, b.Seq))
	})
	d.Records = d.Records[:min(len(d.Records), most)]
	return d, nil
}

// due adds what is due of some queues, and with singles what stands in no queue. The clock of a statement
// does not move: each record in no queue is either returned or announced.
func (s *Views) due(ctx context.Context, q db.Querier, lane store.Lane, singles bool, keys []string, share, most int, d *Due) error {
	const isNext, isDue, isFirst = isSingle, isSingle + 1, isSingle + 2 // kinds, and that of the first queue
	parts := []string{
		fmt.Sprintf("%s %d AS what, '' AS k, 0 AS seq, '' AS state, %s AS due, 0 AS failed", db.SelectUntil(ctx), isClock, db.Now),
		fmt.Sprintf("SELECT %d, `key`, 0, '', 0, 0 FROM postrider_hold WHERE pipe = ? AND lane = %d", isHold, lane),
	}
	args := []any{s.Pipe}
	if singles {
		parts = append(parts,
			fmt.Sprintf("(SELECT %d, '', s.seq, s.state, s.place, 0 FROM "+single+" AND s.place > %s ORDER BY s.place, s.seq LIMIT 1)", isNext, lane, db.Now),
			fmt.Sprintf("(SELECT %d, '', s.seq, s.state, s.place, 0 FROM "+single+" AND s.place <= %s ORDER BY s.place, s.seq LIMIT %d)", isDue, lane, db.Now, most))
		args = append(args, s.Pipe, s.Pipe)
	}
	for i, key := range keys {
		parts = append(parts, fmt.Sprintf("(SELECT %d, '', seq, state, due_at, last_attempt FROM postrider_parked"+ordered+
			" WHERE pipe = ? AND lane = %d AND queue = ? ORDER BY place LIMIT %d)", isFirst+i, lane, share+1))
		args = append(args, s.Pipe, []byte(key))
	}
	rows, err := q.QueryContext(ctx, strings.Join(parts, " UNION ALL "), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	now, next := int64(0), sql.NullInt64{}
	held, queues := map[string]bool{}, make([][]queued, len(keys))
	for rows.Next() {
		var what int
		var key, state string
		var r queued
		if err := rows.Scan(&what, &key, &r.seq, &state, &r.due, &r.failed); err != nil {
			return err
		}
		r.state = db.StateOf(state)
		switch what {
		case isClock:
			now = r.due
		case isHold:
			held[key] = true
		case isNext:
			next = sql.NullInt64{Int64: r.due, Valid: true}
		case isDue:
			d.Records = append(d.Records, Record{Seq: r.seq, place: 1, since: r.due})
		default:
			queues[what-isFirst] = append(queues[what-isFirst], r)
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if next.Valid {
		d.HasNext, d.Next = true, db.Until(now, next.Int64)
	}
	for i, queue := range queues {
		if !held[""] && !held[keys[i]] {
			d.flow(queue, share, now)
		}
	}
	return rows.Close() // the next queries may need its connection
}

// flow adds the records of a queue up to the first one that is not due by itself, at most a share.
func (d *Due) flow(queue []queued, share int, now int64) {
	slices.SortFunc(queue, func(a, b queued) int { return cmp.Compare(a.seq, b.seq) }) // a union promises no order
	since := int64(0)
	for i := range queue {
		us, ok := queue[i].dueAt(now)
		if !ok || us > now {
			return
		}
		if i == share {
			d.More = true
			return
		}
		if i == 0 {
			since = us
		}
		d.Records = append(d.Records, Record{Seq: queue[i].seq, Last: i == len(queue)-1, place: i + 1, since: since})
	}
}
