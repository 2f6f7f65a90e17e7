package pgstore

import (
	"context"
	"encoding/binary"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// stateOf is the inverse of State.String for what stands in the parked table.
func stateOf(text string) store.State {
	for _, st := range []store.State{store.Scheduled, store.Retry, store.Waiting, store.Dead} {
		if st.String() == text {
			return st
		}
	}
	return store.Pending
}

// readParked answers the parked reads: what is due, longest due first.
func (r *reader) readParked(ctx context.Context, reads []store.LaneRead, which []int) ([]store.Batch, error) {
	lanes, limits := newList(len(which)), newList(len(which))
	ids := make([]int16, 0, len(which))
	byLane := map[store.Lane]*dueBatch{}
	count := 0
	for _, i := range which {
		req := reads[i]
		d := &dueBatch{limit: req.MaxRecords, maxBytes: req.MaxBytes}
		if d.limit <= 0 || d.limit > MaxRead {
			d.limit = MaxRead
		}
		if d.maxBytes <= 0 {
			d.maxBytes = defaultBatchBytes
		}
		count = max(count, countTo(req.CountParked))
		lanes.add(int64(req.Lane))
		limits.add(int64(d.limit) + 1)
		ids = append(ids, int16(req.Lane))
		byLane[req.Lane] = d
	}
	pipe := r.store.opts.Pipe
	err := r.query(ctx, r.store.sql.due, [][]byte{[]byte(pipe), lanes.end(), limits.end()}, func(rr *pgconn.ResultReader) error {
		for rr.NextRow() {
			if err := r.dueRow(rr.Values(), byLane); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	views := map[store.Lane]store.ParkedView{}
	b := &pgx.Batch{}
	b.Queue(r.store.sql.settings)
	b.Queue(r.store.sql.parked, pipe, ids, count).Query(func(rows pgx.Rows) error { return scanViews(rows, views) })
	if err := r.conn.SendBatch(ctx, b).Close(); err != nil {
		return nil, err
	}
	batches := make([]store.Batch, 0, len(which))
	for lane, d := range byLane {
		batches = append(batches, store.Batch{
			Lane: lane, Messages: d.rows.msgs, Meta: d.rows.meta, More: d.rows.cut, Parked: views[lane],
		})
	}
	return batches, nil
}

type dueBatch struct {
	limit, maxBytes, bytes int
	rows                   rows
}

func (r *reader) dueRow(v [][]byte, byLane map[store.Lane]*dueBatch) error {
	var rec record
	if len(v) < colCount+3 || len(v[colCount+1]) != 4 || len(v[colCount+2]) != 4 {
		return errRow
	}
	if err := r.arena.decode(v, &rec); err != nil {
		return err
	}
	d := byLane[store.Lane(rec.lane)]
	if d == nil {
		return errRow
	}
	n := len(d.rows.meta)
	d.bytes = d.rows.add(&rec, r.now, d.limit, d.maxBytes, d.bytes)
	if len(d.rows.meta) == n {
		return nil
	}
	d.rows.meta[n] = store.Meta{
		Seq: rec.seq, State: stateOf(string(v[colCount])),
		Attempts:   int(binary.BigEndian.Uint32(v[colCount+1])),
		Generation: int(binary.BigEndian.Uint32(v[colCount+2])),
	}
	return nil
}

// scanMessage reads the message columns of the admin's lists.
func scanMessage(rows pgx.Rows, m *postrider.Message, more ...any) error {
	var notBefore pgTime
	dest := []any{&m.ID, &m.Topic, &m.Key, &m.Type, &m.Payload, &m.ContentType, &m.Headers, &m.Version, &m.SchemaVersion, &notBefore, &m.Time}
	if err := rows.Scan(append(dest, more...)...); err != nil {
		return err
	}
	if notBefore != nil {
		m.NotBefore = notBefore.UTC()
	}
	m.Time = m.Time.UTC()
	if len(m.Headers) == 0 {
		m.Headers = nil
	}
	return nil
}
