package memstore

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sort"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
)

// snapshot is what one statement sees: every transaction below xmax that is not
// in xip has ended, and of those the committed ones are visible.
type snapshot struct {
	xmax int64 // latest completed + 1
	xip  map[int64]bool
}

func (db *database) snapshot() snapshot {
	t := snapshot{xmax: db.completed + 1}
	for id := range db.running {
		if id >= t.xmax {
			continue
		}
		if t.xip == nil {
			t.xip = map[int64]bool{}
		}
		t.xip[id] = true
	}
	return t
}

func (db *database) sees(t snapshot, r *row) bool {
	if db.opts.Defect == AheadOfCommit {
		return r.tx.status != RolledBack
	}
	return r.xid < t.xmax && !t.xip[r.xid] && r.tx.status == Committed
}

// runningAt returns running(T): the ids in progress in the snapshot, and every
// id from xmax to the next one. Those may be running already, and may have
// drawn numbers below what the snapshot shows.
func (db *database) runningAt(t snapshot, next int64) []int64 {
	var ids []int64
	for id := range t.xip {
		ids = append(ids, id)
	}
	if db.opts.Defect != OnlyXip {
		for id := t.xmax; id < next; id++ {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	p, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer s.db.mu.Unlock()
	if err := s.checkIdentity(); err != nil {
		return nil, err
	}
	s.look(s.db.version)
	batches, reads := s.takeAhead(reads)
	if len(reads) == 0 {
		return batches, nil
	}
	began := s.beginRead(reads)
	v, err := s.db.look(p)
	if err == nil && s.db.opts.Family == Holes {
		v.seen, err = s.lookForHoles(p, reads)
	}
	if err != nil {
		return nil, err
	}
	spent := 0
	for _, r := range reads {
		if err := s.db.checkLane(r.Lane); err != nil {
			return nil, err
		}
		v.left = math.MaxInt
		if r.Within > 0 && s.db.opts.Defect != LaneBytesOnly {
			v.left = r.Within - spent
		}
		b, err := v.read(r)
		if err != nil {
			return nil, err
		}
		for i := range b.Messages {
			spent += b.Messages[i].Size()
		}
		batches = append(batches, b)
	}
	for i := range reads {
		s.endRead(began, &reads[i], &batches[len(batches)-len(reads)+i], v)
	}
	return batches, nil
}

// view is one look of a pipe at the database.
type view struct {
	db      *database
	pipe    *pipe
	last    int64 // the sequence, read before the snapshot
	snap    snapshot
	running []int64
	next    int64 // the next transaction id, read with running
	left    int   // bytes that the next batch may hold, its first record included
	seen    holes.Look
}

func (db *database) look(p *pipe) (*view, error) {
	v := &view{db: db, pipe: p, last: db.seq}
	if err := db.step(AfterSequence); err != nil {
		return nil, err
	}
	v.snap = db.snapshot()
	if err := db.step(AfterSnapshot); err != nil {
		return nil, err
	}
	v.running, v.next = db.runningAt(v.snap, db.nextXid), db.nextXid
	if db.opts.Defect == SequenceLate {
		if err := db.step(AfterSequence); err != nil {
			return nil, err
		}
		v.last = db.seq
	}
	return v, nil
}

func (v *view) read(r store.LaneRead) (store.Batch, error) {
	b := store.Batch{Lane: r.Lane}
	ln := v.pipe.lanes[r.Lane]
	if r.Parked {
		v.readParked(ln, r, &b)
		return b, nil
	}
	var err error
	switch v.db.opts.Family {
	case Rows:
		err = v.readRows(ln, r, &b)
	case Holes:
		err = v.readHoles(ln, r, &b)
	default:
		err = v.readCursor(ln, r, &b)
	}
	if v.db.opts.Defect == Reversed {
		slices.Reverse(b.Messages)
		slices.Reverse(b.Meta)
	}
	return b, err
}

// page collects rows for a batch within the limits of a read.
type page struct {
	db    *database
	b     *store.Batch
	read  store.LaneRead
	bytes int
	left  int
	full  bool
}

// add reports whether the row found room; a batch takes one row whatever its size,
// unless the call is bounded.
func (p *page) add(r *row) bool {
	n := len(p.b.Messages)
	size := r.rec.Message.Size()
	if n > 0 && (p.read.MaxRecords > 0 && n >= p.read.MaxRecords || p.read.MaxBytes > 0 && p.bytes+size > p.read.MaxBytes) || p.bytes+size > p.left {
		p.full = true
		return false
	}
	p.bytes += size
	p.b.Messages = append(p.b.Messages, r.rec.Message)
	meta := store.Meta{Seq: r.seq}
	if nb := r.rec.Message.NotBefore; !nb.IsZero() {
		meta.DueIn = max(0, nb.Sub(p.db.opts.Now()))
	}
	p.b.Meta = append(p.b.Meta, meta)
	return true
}

// readCursor is the algorithm of the design's section 4.
func (v *view) readCursor(ln *lane, r store.LaneRead, b *store.Batch) error {
	c := ln.cursor
	if r.After != nil {
		var err error
		if c, err = decodeCursor(r.After); err != nil {
			return err
		}
	}
	pg := &page{db: v.db, b: b, read: r, left: v.left}
	before := c.encode()
	defer func() {
		if pg.full && len(b.Messages) == 0 { // left out: nothing moved
			b.Position = before
		}
	}()
	if v.db.opts.Defect == XidOrder {
		v.readByXid(&c, pg)
		b.Position, b.More = c.encode(), pg.full
		return nil
	}
	for v.resolve(&c); len(c.draining) > 0; v.resolve(&c) {
		if !v.readStragglers(&c, pg) {
			b.Position, b.More = c.encode(), true
			return nil
		}
		// What ended while these were draining is resolved before the page:
		// the page may hold later records of the same transactions.
		c.draining, c.after = nil, 0
	}
	v.readPage(&c, pg)
	b.Position, b.More = c.encode(), pg.full
	return nil
}

// resolve moves transactions that ended since the position was made from
// inflight to draining, unless some are draining already.
func (v *view) resolve(c *cursor) {
	if v.db.opts.Defect == IgnoreInflight || len(c.draining) > 0 {
		return
	}
	var still, ended []int64
	for _, id := range c.inflight {
		if has(v.running, id) {
			still = append(still, id)
		} else {
			ended = append(ended, id)
		}
	}
	c.inflight, c.draining, c.after = still, ended, 0
}

// readStragglers takes the rows of draining up to pos, lowest number first, and
// reports whether none is left.
func (v *view) readStragglers(c *cursor, pg *page) bool {
	var rows []*row
	for _, id := range c.draining {
		t := v.db.txs[id]
		if t == nil {
			continue
		}
		for _, r := range t.rows {
			if r.lane == pg.b.Lane && r.seq > c.after && r.seq <= c.pos && v.db.sees(v.snap, r) {
				rows = append(rows, r)
			}
		}
	}
	slices.SortFunc(rows, func(a, b *row) int { return cmp.Compare(a.seq, b.seq) })
	for _, r := range rows {
		if !pg.add(r) {
			return false
		}
		c.after = r.seq
	}
	return true
}

// readPage takes the rows behind pos and moves the position past them, or past
// everything that the sequence had numbered when the page is short.
func (v *view) readPage(c *cursor, pg *page) {
	rows := v.db.log[pg.b.Lane]
	for _, r := range rows[sort.Search(len(rows), func(i int) bool { return rows[i].seq > c.pos }):] {
		if !v.db.sees(v.snap, r) {
			continue
		}
		if !pg.add(r) {
			break
		}
		c.pos = r.seq
	}
	if v.db.opts.Defect == BareCursor {
		return
	}
	if !pg.full {
		c.pos = max(c.pos, v.last)
	}
	c.inflight = union(c.inflight, v.running)
}

// readByXid is the defect XidOrder: pos holds a transaction id, and rows are
// taken transaction by transaction below the oldest running one.
func (v *view) readByXid(c *cursor, pg *page) {
	limit := v.snap.xmax
	for id := range v.snap.xip {
		limit = min(limit, id)
	}
	for id := c.pos + 1; id < limit; id++ {
		t := v.db.txs[id]
		if t == nil {
			c.pos = id
			continue
		}
		whole := *pg
		whole.read.MaxRecords, whole.read.MaxBytes, whole.left = 0, 0, math.MaxInt
		for _, r := range t.rows {
			if r.lane == pg.b.Lane && v.db.sees(v.snap, r) {
				whole.add(r)
			}
		}
		c.pos = id
		if pg.read.MaxRecords > 0 && len(pg.b.Messages) >= pg.read.MaxRecords {
			pg.full = true
			return
		}
	}
}

func union(a, b []int64) []int64 {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// readRows takes from the head of the lane everything visible that is still
// there and not taken. Reading behind the last taken row instead would let a
// late commit with a lower number be overtaken.
func (v *view) readRows(ln *lane, r store.LaneRead, b *store.Batch) error {
	var taken []int64
	if r.After != nil {
		var err error
		if taken, err = decodeRows(r.After); err != nil {
			return err
		}
	}
	var still, fresh []int64
	pg := &page{db: v.db, b: b, read: r, left: v.left}
	for _, row := range v.db.log[r.Lane][ln.head:] {
		if ln.gone[row.seq] || !v.db.sees(v.snap, row) {
			continue
		}
		if has(taken, row.seq) {
			still = append(still, row.seq)
			continue
		}
		if pg.full || !pg.add(row) {
			continue
		}
		fresh = append(fresh, row.seq)
	}
	b.More = pg.full
	if len(fresh) == 0 && r.After != nil {
		b.Position = slices.Clone(r.After) // nothing moved
		return nil
	}
	b.Position = encodeRows(union(still, fresh))
	return nil
}
