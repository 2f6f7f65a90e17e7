package pgstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// readParked answers the parked reads: those that name queues, and those that
// find due records, longest due first.
func (r *reader) readParked(ctx context.Context, reads []store.LaneRead, which []int) ([]store.Batch, error) {
	var named, whole []*dueBatch
	all := make([]dueBatch, len(which))
	byLane := make(map[store.Lane]*dueBatch, len(which))
	for i, at := range which {
		d := &all[i]
		d.req = reads[at]
		if d.req.MaxBytes <= 0 {
			d.req.MaxBytes = defaultBatchBytes
		}
		d.limit = r.store.pageRows(d.req.MaxRecords, d.req.MaxBytes)
		byLane[d.req.Lane] = d
		if d.req.Keys != nil {
			named = append(named, d)
		} else {
			whole = append(whole, d)
		}
	}
	if len(named) > 0 {
		if err := r.readQueues(ctx, named, byLane); err != nil {
			return nil, err
		}
	}
	if len(whole) > 0 {
		if err := r.readDue(ctx, whole, byLane); err != nil {
			return nil, err
		}
	}
	r.store.sawParked(all)
	batches := make([]store.Batch, len(all))
	for i := range all {
		d := &all[i]
		batches[i] = store.Batch{Lane: d.req.Lane, Messages: d.rows.msgs, Meta: d.rows.meta, More: d.rows.cut || d.more, Parked: d.view}
	}
	return batches, nil
}

// readDue reads due records and the lanes' views.
func (r *reader) readDue(ctx context.Context, whole []*dueBatch, byLane map[store.Lane]*dueBatch) error {
	lanes, limits, count := newList(len(whole)), newList(len(whole)), 0
	ids := make([]int16, 0, len(whole))
	for _, d := range whole {
		count = max(count, countTo(d.req.CountParked))
		lanes.add(int64(d.req.Lane))
		limits.add(int64(d.limit) + 1)
		ids = append(ids, int16(d.req.Lane))
	}
	pipe := r.store.opts.Pipe
	read := func(rr *pgconn.ResultReader) error {
		for rr.NextRow() {
			v := rr.Values()
			d, err := r.dueRow(v, byLane)
			if err != nil {
				return err
			}
			if len(v) <= colEnds {
				return errRow
			}
			taken, err := r.take(d, v)
			if err != nil {
				return err
			}
			if taken {
				d.rows.meta[len(d.rows.meta)-1].Last = truth(v[colEnds])
			}
			d.more = d.more || truth(v[colDue])
		}
		return nil
	}
	if err := r.query(ctx, r.store.sql.due, [][]byte{[]byte(pipe), lanes.end(), limits.end()}, read); err != nil {
		return err
	}
	views := make(map[store.Lane]store.ParkedView, len(whole))
	b := &pgx.Batch{}
	b.Queue(r.store.sql.settings) // the connection's server has been asserted
	b.Queue(r.store.sql.parked, pipe, ids, count).Query(func(rows pgx.Rows) error { return scanViews(rows, views) })
	if err := r.conn.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	for _, d := range whole {
		d.view = views[d.req.Lane]
	}
	return nil
}

// readQueues reads the queues that the caller named, then due records outside of queues.
func (r *reader) readQueues(ctx context.Context, named []*dueBatch, byLane map[store.Lane]*dueBatch) error {
	lanes, each, all, limits := newList(len(named)), newList(len(named)), newList(len(named)), newList(len(named))
	var keys []string
	for _, d := range named {
		all.add(int64(d.req.Lane))
		limits.add(int64(d.limit) + 1)
		// Each queue brings a record, and one more that tells whether it continues: where
		// records are large the batch has no room for all queues.
		first := d.req.Keys[:min(len(d.req.Keys), d.limit)]
		d.more = len(first) < len(d.req.Keys)
		d.share = max(d.limit/max(len(first), 1), 1)
		for range first {
			lanes.add(int64(d.req.Lane))
			each.add(int64(d.share))
		}
		keys = append(keys, first...)
	}
	pipe, ids := []byte(r.store.opts.Pipe), all.end()
	// The next due time is read first: each statement has its own time, and a record that
	// becomes due between two of them would otherwise be neither returned nor announced.
	queries := []query{
		{r.store.sql.nextSingle, [][]byte{pipe, ids}, func(rr *pgconn.ResultReader) error { return nextRows(rr, byLane) }},
		{r.store.sql.singles, [][]byte{pipe, ids, limits.end()}, func(rr *pgconn.ResultReader) error { return r.singleRows(rr, byLane) }},
	}
	if len(keys) > 0 {
		queues := query{
			r.store.sql.queues,
			[][]byte{pipe, lanes.end(), db.TextArray(keys), each.end()},
			func(rr *pgconn.ResultReader) error { return r.queueRows(rr, byLane) },
		}
		queries = append([]query{queues}, queries...)
	}
	return r.queries(ctx, queries...)
}

// dueBatch is one parked read in progress.
type dueBatch struct {
	req          store.LaneRead
	limit, bytes int
	share        int // most records of one queue
	rows         rows
	more         bool
	view         store.ParkedView
}

// Columns behind those of a record.
const (
	colState = colCount + iota
	colAttempts
	colGeneration
	colCode
	colDue // of a queue: whether the record is due by itself; of what is due: whether more of its queue may be
	colPlace
	colEnds = colPlace // of what is due: whether its queue ends with it
)

func truth(v []byte) bool { return len(v) == 1 && v[0] == 1 }

func (r *reader) dueRow(v [][]byte, byLane map[store.Lane]*dueBatch) (*dueBatch, error) {
	if len(v) < colDue || len(v[colLane]) != 2 || len(v[colAttempts]) != 4 || len(v[colGeneration]) != 4 {
		return nil, errRow
	}
	d := byLane[store.Lane(int16(binary.BigEndian.Uint16(v[colLane])))]
	if d == nil {
		return nil, errRow
	}
	return d, nil
}

// take adds a record unless a limit is reached.
func (r *reader) take(d *dueBatch, v [][]byte) (bool, error) {
	size := wireSize(v)
	if !r.fits(&d.req, len(d.rows.msgs), r.spent, size) || len(d.rows.msgs) > 0 && d.bytes+size > d.req.MaxBytes {
		d.rows.cut = true
	}
	if d.rows.cut {
		return false, nil
	}
	var rec record
	if err := r.arena.decode(v, &rec); err != nil {
		return false, err
	}
	n, before := len(d.rows.meta), d.bytes
	d.bytes = d.rows.add(&rec, rec.msg.NotBefore, d.limit, d.req.MaxBytes, d.bytes)
	if len(d.rows.meta) == n {
		return false, nil
	}
	r.spent += d.bytes - before
	d.rows.meta[n] = store.Meta{
		Seq: rec.seq, State: db.StateOf(string(v[colState])),
		Attempts:   int(binary.BigEndian.Uint32(v[colAttempts])),
		Generation: int(binary.BigEndian.Uint32(v[colGeneration])),
		Code:       string(v[colCode]),
	}
	return true, nil
}

// queueRows takes the due records of each queue, up to the first one that is not due.
func (r *reader) queueRows(rr *pgconn.ResultReader, byLane map[store.Lane]*dueBatch) error {
	var d *dueBatch
	place, seen, last, stopped := []byte(nil), 0, -1, false
	end := func() { // the queue ended with the last taken record
		if d != nil && !stopped && last >= 0 {
			d.rows.meta[last].Last = true
		}
	}
	for rr.NextRow() {
		v := rr.Values()
		if len(v) <= colPlace {
			return errRow
		}
		if !bytes.Equal(v[colPlace], place) {
			end()
			place, seen, last, stopped = bytes.Clone(v[colPlace]), 0, -1, false
		}
		if seen++; stopped {
			continue
		}
		next, err := r.dueRow(v, byLane)
		if err != nil {
			return err
		}
		d = next
		switch {
		case !truth(v[colDue]):
			stopped = true
		case seen > d.share:
			stopped, d.more = true, true
		default:
			last = len(d.rows.meta)
			taken, err := r.take(d, v)
			if err != nil {
				return err
			}
			stopped = !taken
		}
	}
	end()
	return nil
}

func (r *reader) singleRows(rr *pgconn.ResultReader, byLane map[store.Lane]*dueBatch) error {
	for rr.NextRow() {
		v := rr.Values()
		d, err := r.dueRow(v, byLane)
		if err != nil {
			return err
		}
		taken, err := r.take(d, v)
		if err != nil {
			return err
		}
		if !taken {
			d.view.HasDue, d.view.NextDue = true, 0 // more of them are due now
		}
	}
	return nil
}

func nextRows(rr *pgconn.ResultReader, byLane map[store.Lane]*dueBatch) error {
	for rr.NextRow() {
		v := rr.Values()
		if len(v) != 2 || len(v[0]) != 2 || len(v[1]) != 8 {
			return errRow
		}
		d := byLane[store.Lane(binary.BigEndian.Uint16(v[0]))]
		if d == nil {
			return errRow
		}
		d.view.HasDue, d.view.NextDue = true, db.Seconds(math.Float64frombits(binary.BigEndian.Uint64(v[1])))
	}
	return nil
}
