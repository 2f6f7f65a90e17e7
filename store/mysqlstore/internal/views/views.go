// Package views reads what the owner of a lane must know of its parked records.
package views

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"time"

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
// the head of each queue. A dead record never does. %[1]s: the lanes. Parameters: the pipe, twice.
//
// MIN and MAX over windows are not used, here and below: the servers compare each row with all others.
//
//nolint:gochecknoglobals // a constant, but for the call of held
var ready = "(SELECT h.*, " + dueTime + " AS due FROM (" +
	"SELECT pipe, lane, `key`, seq, state, captures, due_at, last_attempt FROM postrider_parked WHERE pipe = ? AND lane IN (%[1]s) AND state <> 'dead') AS h" +
	" LEFT JOIN (SELECT lane AS queue_lane, `key` AS queue, MIN(seq) AS head FROM postrider_parked WHERE pipe = ? AND lane IN (%[1]s) AND " + inQueue + " GROUP BY lane, `key`) AS q" +
	" ON q.queue_lane = h.lane AND q.queue = h.`key`" +
	" WHERE CASE WHEN `key` = '' THEN 1 WHEN state = 'scheduled' THEN head IS NULL WHEN " + inQueue + " THEN head = seq ELSE 1 END AND NOT " + held("h") + ") AS ready"

// timed is what may be due of a lane. Parameters: the pipe, the lane.
//
//nolint:gochecknoglobals // a constant, but for the call of held
var timed = "(SELECT pipe, `key`, seq, state, " + dueTime + " AS due, " + inQueue + " AS chained" +
	" FROM postrider_parked r WHERE pipe = ? AND lane = ? AND (captures OR state <> 'dead') AND NOT " + held("r") + ") AS timed"

const live = "(state <> 'dead' AND due <= " + db.Now + ")"

// Due is what is due of a lane: its place in its key's queue, or 1, and since when
// the head of that queue is due. A record of a queue flows when none up to it is
// dead or has its time before it. Parameters: the pipe, the lane, and both again.
//
//nolint:gochecknoglobals // a constant, but for the call of held
var Due = "(SELECT pipe, seq, chained, (chained AND seq = final) AS ends, CASE WHEN chained THEN nth ELSE 1 END AS place," +
	" CASE WHEN chained THEN first_due ELSE due END AS since FROM (" +
	"SELECT timed.*, q.*, ROW_NUMBER() OVER (PARTITION BY `key`, chained ORDER BY seq) AS nth," +
	" FIRST_VALUE(due) OVER (PARTITION BY `key`, chained ORDER BY seq) AS first_due FROM " + timed +
	" LEFT JOIN (SELECT `key` AS queue, MAX(seq) AS final, MIN(CASE WHEN NOT " + live + " THEN seq END) AS stop FROM " + timed + " WHERE chained GROUP BY `key`) AS q ON q.queue = timed.`key`" +
	") AS placed WHERE CASE WHEN chained THEN stop IS NULL OR seq < stop WHEN state = 'scheduled' THEN " + live + " AND queue IS NULL ELSE " + live + " END) AS due"

// NextSingle tells when the next record that stands in no queue becomes due.
func NextSingle(ctx context.Context, o *db.Outbox, q db.Querier, lane store.Lane, v *store.ParkedView) error {
	var at sql.NullInt64
	var here int64
	err := q.QueryRowContext(ctx, `SELECT MIN(due), `+db.Now+` FROM `+fmt.Sprintf(ready, db.Numbers([]store.Lane{lane}))+` WHERE due > `+db.Now+` AND NOT `+inQueue,
		o.Pipe, o.Pipe).Scan(&at, &here)
	if at.Valid {
		v.HasDue, v.NextDue = true, db.Until(here, at.Int64)
	}
	return err
}

// Views reads the views of the lanes of one outbox, in portions. It is safe for concurrent use.
type Views struct {
	*db.Outbox

	mu   sync.Mutex
	slow store.Lane // whose view was not read in time; the next heartbeat begins behind it
	own  map[store.Lane]chain
}

// chain is a run of settlements of one instance in one lane, in the order of their epochs without a gap.
type chain struct {
	boot        string
	first, next int64 // the epoch of the first settlement, and the epoch that the last one made
}

// New returns the views of an outbox.
func New(o *db.Outbox) *Views { return &Views{Outbox: o, slow: -1, own: map[store.Lane]chain{}} }

// Forget forgets settlements: the database is another one.
func (s *Views) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.own)
}

// Settled records a settlement that succeeded.
func (s *Views) Settled(boot string, lane store.Lane, epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.own[lane]
	if c.boot != boot || c.next != epoch {
		c = chain{boot, epoch, epoch}
	}
	c.next = epoch + 1
	s.own[lane] = c
}

// Moved reports whether only settlements of the instance have moved its lane from an epoch that it
// knows to the present one. settled is the epoch of the lane's last settlement in the table, which may
// have no answer yet.
func (s *Views) Moved(boot string, lane store.Lane, known, epoch, settled int64) bool {
	if known == epoch {
		return true
	}
	s.mu.Lock()
	c := s.own[lane]
	s.mu.Unlock()
	return settled == epoch-1 && (known == settled || c.boot == boot && c.first <= known && known < epoch && c.next >= settled)
}

const (
	// atOnce is the number of lanes whose views are read at once if reading is fast.
	atOnce = 8
	// least is how long a view may take although the heartbeat has no time left.
	least = 50 * time.Millisecond
)

// Grant reads the views that the caller lacks, for up to a quarter of the lease. It leaves out the
// lanes whose views it has not read: they follow with the next heartbeat. It
// begins with one lane, whose view may take longer than a heartbeat where hundreds of thousands of
// records are parked. The server ends a statement that takes too long, and the other lanes are read
// first then. No lane is granted without its view: a caller who knows no captured key sends what
// waits behind one.
func (s *Views) Grant(ctx context.Context, q db.Querier, ttl time.Duration, lanes []store.LaneGrant) ([]store.LaneGrant, error) {
	byLane := map[store.Lane]*store.ParkedView{}
	var ids []store.Lane
	for i := range lanes {
		if l := &lanes[i]; !l.Known {
			byLane[l.Lane] = &l.Parked
			ids = append(ids, l.Lane)
		}
	}
	if len(ids) == 0 {
		return lanes, nil
	}
	s.mu.Lock()
	ids = turned(ids, s.slow)
	s.mu.Unlock()
	end, ok := ctx.Deadline()
	if ok {
		end = end.Add(-ttl / 16)
	}
	read, slow, err := portions(ids, ttl, end, func(page []store.Lane, limit time.Duration) error { return s.read(ctx, q, page, limit, byLane) })
	s.mu.Lock()
	s.slow = slow
	s.mu.Unlock()
	if ctx.Err() != nil { // the heartbeat counts
		err = nil
	}
	return slices.DeleteFunc(lanes, func(l store.LaneGrant) bool { return !l.Known && !read[l.Lane] }), err
}

// turned returns ascending lanes so that those behind a slow one come first.
func turned(lanes []store.Lane, slow store.Lane) []store.Lane {
	from := max(slices.IndexFunc(lanes, func(l store.Lane) bool { return l > slow }), 0)
	return slices.Concat(lanes[from:], lanes[:from])
}

// portions reads pages of lanes, and returns which were read, and the lane that was too slow, -1 for
// none. end is when the heartbeat must end, if it is known.
func portions(lanes []store.Lane, ttl time.Duration, end time.Time, read func(page []store.Lane, limit time.Duration) error) (done map[store.Lane]bool, slow store.Lane, err error) {
	start, size, most := time.Now(), 1, atOnce
	last := start.Add(ttl * 3 / 8)
	if !end.IsZero() && end.Before(last) {
		last = end
	}
	done, slow = map[store.Lane]bool{}, -1
	for tried := false; len(lanes) > 0 && (len(done) == 0 || time.Since(start) < ttl/4); tried = true {
		limit := time.Until(last)
		if limit <= 0 {
			if tried {
				break
			}
			limit = least
		}
		page, began := lanes[:min(size, len(lanes))], time.Now()
		if len(page) > 1 { // time is left to find the lane that is slow
			limit = min(limit, ttl/8)
		}
		err := read(page, limit)
		switch {
		case db.TimedOut(err) && len(page) > 1:
			size, most = 1, 1
			continue
		case db.TimedOut(err):
			slow, lanes = page[0], lanes[1:]
			continue
		case err != nil:
			return done, slow, err
		}
		for _, lane := range page {
			done[lane] = true
		}
		if lanes = lanes[len(page):]; time.Since(began) < ttl/32 {
			size = min(2*size, most)
		}
	}
	return done, slow, nil
}

// Of fills in the view of one lane.
func (s *Views) Of(ctx context.Context, q db.Querier, lane store.Lane, v *store.ParkedView) error {
	return s.read(ctx, q, []store.Lane{lane}, 0, map[store.Lane]*store.ParkedView{lane: v})
}

// read reads some lanes' views. The server ends the statement after the limit; 0: it does not.
func (s *Views) read(ctx context.Context, q db.Querier, lanes []store.Lane, limit time.Duration, views map[store.Lane]*store.ParkedView) error {
	for _, lane := range lanes {
		*views[lane] = store.ParkedView{} // what a statement that was broken off has left
	}
	in, pipe, at := db.Numbers(lanes), s.Pipe, int64(0)
	rows, err := q.QueryContext(ctx, db.SelectFor(limit)+" -1 AS lane, 0 AS what, '' AS k, "+db.Now+" AS n, 0 AS last_one"+
		" UNION ALL SELECT lane, 0, '', COUNT(*), 0 FROM postrider_parked WHERE pipe = ? AND lane IN ("+in+") GROUP BY lane"+
		" UNION ALL SELECT lane, 1, `key`, seq, CASE WHEN state = 'dead' OR "+held("q")+" THEN NULL ELSE due END FROM ("+
		"SELECT pipe, lane, `key`, seq, state, "+dueTime+" AS due, ROW_NUMBER() OVER (PARTITION BY lane, `key` ORDER BY seq) AS nth"+
		" FROM postrider_parked WHERE pipe = ? AND lane IN ("+in+") AND "+inQueue+") AS q WHERE nth = 1"+
		" UNION ALL SELECT f.lane, CASE WHEN f.`key` = '' THEN 4 ELSE 1 END, f.`key`, 0, NULL FROM postrider_hold f WHERE f.pipe = ? AND f.lane IN ("+in+")"+
		" AND NOT EXISTS (SELECT 1 FROM postrider_parked WHERE pipe = f.pipe AND lane = f.lane AND `key` = f.`key` AND "+inQueue+")"+
		" UNION ALL SELECT lane, 2, '', MIN(due), 0 FROM "+fmt.Sprintf(ready, in)+" GROUP BY lane"+
		" UNION ALL SELECT lane, 3, `key`, MIN(version), MAX(version) FROM ("+
		"SELECT lane, `key`, version, version + DENSE_RANK() OVER (PARTITION BY lane, `key` ORDER BY version DESC) AS run"+
		" FROM postrider_parked WHERE pipe = ? AND lane IN ("+in+") AND state = 'dead' AND NOT captures AND `key` <> '' AND version > 0) AS g GROUP BY lane, `key`, run"+
		" ORDER BY 1, 2, 3, 4", pipe, pipe, pipe, pipe, pipe, pipe)
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
		v := views[lane]
		switch {
		case lane == -1:
			at = n
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
