package pgstore

import (
	"bytes"
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/xids"
)

// quiet is a read that found nothing while no transaction with an id was
// running. Every number up to its floor was then accounted for: visible,
// rolled back, or before the positions asked for. As long as the sequence is at
// floor, no row is behind the same positions, and reading the sequence is enough.
// It holds for one session only: within it the server has neither crashed, which
// may take numbers back, nor been replaced.
type quiet struct {
	conn      *pgx.Conn
	identity  string
	floor     int64
	look      xids.Look
	lanes     []store.Lane
	positions []store.Position
}

// covers reports whether reads are those of q: the same lanes at the same positions.
func (q *quiet) covers(reads []store.LaneRead) bool {
	if len(reads) != len(q.lanes) {
		return false
	}
	for i, req := range reads {
		if req.Parked || req.Lane != q.lanes[i] || !bytes.Equal(req.After, q.positions[i]) {
			return false
		}
	}
	return true
}

// stillQuiet reports whether nothing was written since the same read found
// no row. It reads the sequence, and the server's identity with it. Without named
// statements the read may have used another session, and is not remembered.
func (r *reader) stillQuiet(ctx context.Context, reads []store.LaneRead) (bool, error) {
	r.store.mu.Lock()
	q, identity := r.store.quiet, r.store.identity
	r.store.mu.Unlock()
	if q == nil || q.conn != r.conn || r.nameless() || q.identity != identity || !q.covers(reads) {
		return false, nil
	}
	sd, err := r.conn.Prepare(ctx, r.store.sql.floor, r.store.sql.floor)
	if err != nil {
		return false, err
	}
	rr := r.conn.PgConn().ExecPrepared(ctx, sd.Name, nil, nil, nil)
	err, r.look = r.floorRow(rr), q.look
	if _, cerr := rr.Close(); cerr != nil {
		return false, cerr
	}
	return err == nil && r.floor == q.floor, err
}

// noteQuiet remembers a read that found nothing, if it was for good.
func (r *reader) noteQuiet(lanes []*laneRead) {
	identity := r.saw
	if r.store.knownIdentity() == "" || len(r.look.Running) > 0 {
		return
	}
	for _, l := range lanes {
		if len(l.cur.inflight) > 0 || len(l.cur.draining) > 0 {
			return
		}
	}
	q := &quiet{conn: r.conn, identity: identity, floor: r.floor, look: r.look}
	for _, l := range lanes {
		q.lanes, q.positions = append(q.lanes, l.req.Lane), append(q.positions, l.req.After)
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.quiet = q
}

// told tells the bell what a read saw, so that it knows which commits the read missed.
func (r *reader) told(began uint64, reads []store.LaneRead, batches []store.Batch) {
	if r.store.opts.Wake != Reading {
		return
	}
	rows := 0
	for i := range batches {
		rows += len(batches[i].Messages)
	}
	switch {
	case r.quiet:
		for i := range reads {
			r.heard = append(r.heard, int16(reads[i].Lane))
		}
		r.store.bell.End(began, r.heard, nil, true, rows)
	case len(r.heard) > 0:
		r.store.bell.End(began, r.heard, &r.look, false, rows)
	default: // it failed, or read what is parked
		r.store.bell.End(began, nil, nil, false, rows)
	}
}

// hears notes the lanes whose log was read.
func (r *reader) hears(lanes []*laneRead) {
	if r.store.opts.Wake != Reading {
		return
	}
	for _, l := range lanes {
		r.heard = append(r.heard, int16(l.req.Lane))
	}
}
