package pgstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/xids"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// moveAfter is how far the sequence may run ahead of a lane without rows before
// its position follows. Following costs a settlement; without following, the next read
// passes over uncommitted rows again, at most this many.
const moveAfter = 512

// scanRows is the most rows that a read of a pipe with a filter scans in all
// lanes together: about 30 ms, whatever passes the filter.
const scanRows = 16 << 10

// defaultBatchBytes bounds a batch whose reader set no limit.
const defaultBatchBytes = 16 << 20

// firstRowBytes is the assumed size of records before the first page shows
// it: that page must arrive in time even if they are very large.
const firstRowBytes = 256 << 10

// laneRead is one log read in progress.
type laneRead struct {
	req      store.LaneRead
	first    bool // the reader does not know its position yet
	cur      cursor
	limit    int // records of the next page
	maxBytes int
	page     rows
	bound    int64    // of a pipe with a filter, or of a span: how far it looked, 0: to the end
	late     rows     // stragglers
	arena    arena    // of a span, whose rows of all lanes come mixed
	lost     int64    // least number that a span left out for its bytes, 0: none
	resolved xids.Set // transactions that ended since the cursor passed them
}

// rows are records of one lane in seq order.
type rows struct {
	msgs []postrider.Message
	meta []store.Meta
	size []int // bytes of each
	cut  bool  // more was there than the limits allow
	last int64 // number of the last record that counts towards the limits
	seen int   // how many do: those taken and those passed over
}

func (r *rows) bytes() int {
	n := 0
	for _, s := range r.size {
		n += s
	}
	return n
}

// add takes a record unless a limit is reached.
func (r *rows) add(rec *record, now time.Time, maxRecords, maxBytes, bytes int) int {
	size := rec.msg.Size()
	if len(r.msgs) > 0 && bytes+size > maxBytes {
		r.cut = true
	}
	if !r.pass(rec.seq, maxRecords) {
		return bytes
	}
	meta := store.Meta{Seq: rec.seq}
	if !rec.msg.NotBefore.IsZero() {
		meta.DueIn = max(rec.msg.NotBefore.Sub(now), 0)
	}
	r.msgs = append(r.msgs, rec.msg)
	r.meta = append(r.meta, meta)
	r.size = append(r.size, size)
	return bytes + size
}

// pass counts a record towards the limit, and reports whether it is within.
func (r *rows) pass(seq int64, maxRecords int) bool {
	if r.cut = r.cut || r.seen >= maxRecords; r.cut {
		return false
	}
	r.seen, r.last = r.seen+1, seq
	return true
}

// fits reports whether a record of the lane may be taken into memory beside what the
// call holds already. The first one of a lane that is not bounded always may.
func (r *reader) fits(req *store.LaneRead, taken, held, size int) bool {
	return r.within == 0 || held+size <= r.within || req.Within == 0 && taken == 0
}

// Read returns the next batch of each lane in one round trip; when
// transactions have ended that the cursor had passed, a second one fetches
// their rows, which go first.
func (s *Store) Read(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	if s.box.Bad != nil {
		return nil, s.box.Bad
	}
	if len(reads) == 0 {
		return nil, nil
	}
	var sent []store.Batch
	if s.early != nil {
		if sent, reads = s.early.Take(reads, s.knownIdentity()); len(reads) == 0 {
			return sent, nil
		}
	}
	conn, err := s.box.Pool.Acquire(ctx)
	if err != nil {
		return nil, s.box.Wrap("connect", err)
	}
	defer conn.Release()
	r := &reader{store: s, conn: conn.Conn(), guess: s.guess()}
	r.arena.first = r.guess.bytes
	var batches []store.Batch
	began := s.bell.Begin()
	defer func() { r.told(began, reads, batches) }()
	pipe, err := s.box.ThePipe(ctx, conn)
	var looks uint64
	if err == nil {
		if r.filter = pipe.Filter; s.early != nil && r.filter == nil {
			looks = s.early.Begin(reads)
		}
		batches, err = r.read(ctx, reads)
	}
	if err != nil {
		if (errors.Is(ctx.Err(), context.DeadlineExceeded) || db.TimedOut(err)) && !r.waits {
			s.tooSlow()
		}
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "0A000" { // a plan from before a migration
			_ = conn.Conn().Close(context.WithoutCancel(ctx)) // the pool drops it; the error is reported below
		}
		return nil, s.box.Wrap("read the outbox", err)
	}
	if s.early != nil && r.filter == nil {
		s.early.Read(looks, reads, batches, &r.look, r.span == (span{}))
	}
	return append(sent, batches...), nil
}

// read returns no batch for a lane without new rows, as most of 64 lanes
// are.
func (r *reader) read(ctx context.Context, reads []store.LaneRead) (batches []store.Batch, err error) {
	if still, err := r.stillQuiet(ctx, reads); still || err != nil {
		r.quiet = still
		return nil, err
	}
	r.room = r.store.rooms.Get().(*room)
	defer r.release()
	lanes, parked, err := r.split(ctx, reads)
	if err != nil {
		return nil, err
	}
	lanes = r.inStep(lanes)
	r.most = r.store.mostLate(r.within)
	batches = append(batches, r.room.left...)
	if len(lanes) > 0 {
		if err := r.readLog(ctx, lanes); err != nil {
			return nil, err
		}
		r.hears(lanes)
		moved := len(batches) > 0
		for _, l := range lanes {
			r.spent += l.late.bytes()
		}
		for _, l := range lanes {
			b := r.finish(l)
			news := b.More || len(b.Messages) > 0 || !bytes.Equal(b.Position, l.req.After)
			if news || l.first {
				batches = append(batches, b)
			}
			moved = moved || news
		}
		if !moved && r.span == (span{}) {
			r.noteQuiet(lanes)
		}
	}
	if len(parked) > 0 {
		due, err := r.readParked(ctx, reads, parked)
		if err != nil {
			return nil, err
		}
		batches = append(batches, due...)
	}
	return batches, nil
}

// room has the memory of a read that its caller does not keep. The next read reuses
// it: with 64 lanes it is most of the allocation of a read with few rows.
type room struct {
	all    []laneRead
	lanes  []*laneRead
	byLane map[int16]*laneRead
	left   []store.Batch // of lanes that are not asked for, for the bytes of others
}

func (r *reader) release() {
	rm := r.room
	r.room = nil
	clear(rm.all) // messages must not live on
	clear(rm.byLane)
	clear(rm.left)
	rm.left = rm.left[:0]
	r.store.rooms.Put(rm)
}

// split sorts the requests by kind and finds the cursor of each log read.
func (r *reader) split(ctx context.Context, reads []store.LaneRead) (lanes []*laneRead, parked []int, err error) {
	var unknown []int16
	rm := r.room
	if cap(rm.all) < len(reads) {
		*rm = room{all: make([]laneRead, len(reads)), lanes: make([]*laneRead, 0, len(reads)), byLane: make(map[int16]*laneRead, len(reads))}
	}
	rm.all, lanes = rm.all[:len(reads)], rm.lanes[:0]
	for i, req := range reads {
		r.within = max(r.within, req.Within)
		if req.Parked {
			parked = append(parked, i)
			continue
		}
		l := &rm.all[i]
		*l = laneRead{req: req, first: req.After == nil, maxBytes: req.MaxBytes}
		if l.maxBytes <= 0 {
			l.maxBytes = defaultBatchBytes
		}
		if req.After == nil {
			unknown = append(unknown, int16(req.Lane))
		} else if l.cur, err = decodePosition(req.After); err != nil {
			return nil, nil, fmt.Errorf("lane %d: %w", req.Lane, err)
		}
		l.limit = r.store.pageRows(req.MaxRecords, l.maxBytes)
		lanes, rm.byLane[int16(req.Lane)] = append(lanes, l), l
	}
	if len(unknown) == 0 {
		return r.expected(lanes), parked, nil
	}
	cursors, err := r.cursors(ctx, unknown)
	if err != nil {
		return nil, nil, err
	}
	for _, l := range lanes {
		if l.req.After == nil {
			c, ok := cursors[int16(l.req.Lane)]
			if !ok {
				return nil, nil, fmt.Errorf("lane %d of pipe %q: %w", l.req.Lane, r.store.opts.Pipe, store.ErrNotFound)
			}
			l.cur = c
			l.req.After = c.encode()
		}
	}
	return r.expected(lanes), parked, nil
}

// expected limits the rows of a call with a bound by their known
// size. While reads fill the bound, it keeps only lanes whose rows will fit:
// the server would send the others' rows in vain. A read of quiet lanes has all lanes.
func (r *reader) expected(lanes []*laneRead) []*laneRead {
	if r.within == 0 {
		return lanes
	}
	guess, full := r.store.rowGuess()
	kept, rows := lanes[:0], r.within/guess
	for i, l := range lanes {
		if l.limit = min(l.limit, rows); l.limit <= 0 && (!full || i == 0) {
			l.limit = 1
		}
		if l.limit <= 0 {
			r.room.left = append(r.room.left, store.Batch{Lane: l.req.Lane, Position: l.req.After, More: true})
			continue
		}
		rows -= l.limit
		kept = append(kept, l)
	}
	return kept
}

// pageRows returns the number of rows to request for about maxBytes.
func (s *Store) pageRows(maxRecords, maxBytes int) int {
	if maxRecords <= 0 || maxRecords > MaxRead {
		maxRecords = MaxRead
	}
	guess, _ := s.rowGuess()
	return min(maxRecords, maxBytes/guess+1)
}

// rowGuess returns the assumed size of records, and whether the newest page of the
// log filled its bound.
func (s *Store) rowGuess() (size int, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rowBytes == 0 {
		return firstRowBytes, s.readFull
	}
	return s.rowBytes, s.readFull
}

func (s *Store) sawFull(full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readFull = full
}

// guess returns the expected size of the next read: that of the last one.
func (s *Store) guess() sizes {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastRead
}

func (s *Store) sawRows(n, bytes int, last sizes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastRead = last
	if n == 0 {
		return
	}
	avg := bytes/n + 1
	if s.rowBytes == 0 || s.cautious {
		s.rowBytes, s.cautious = avg, false
	}
	s.rowBytes += (avg - s.rowBytes) / 4
}

// sawParked learns the size of records from parked ones.
func (s *Store) sawParked(all []dueBatch) {
	n, bytes := 0, 0
	for i := range all {
		n, bytes = n+len(all[i].rows.meta), bytes+all[i].bytes
	}
	s.sawRows(n, bytes, s.guess())
}

// tooSlow makes the next pages smaller, down to one record, after a page timed out: the
// same page would time out again.
func (s *Store) tooSlow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rowBytes, s.cautious = min(8*max(s.rowBytes, firstRowBytes), defaultBatchBytes), true
}

// youngAge is the age up to which a transaction counts as young: it
// cannot have written many rows by then.
const youngAge = 50 * time.Millisecond

// sawRunning records which transactions a page saw running and which of them
// cannot have had an id for longer than youngAge.
func (s *Store) sawRunning(k xids.Look) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.young = nil
	if now.Sub(s.lookedAt) < youngAge {
		s.young = k.Running.Minus(xids.Set{{Hi: s.lookNext}})
	}
	s.lookNext, s.lookedAt = k.Next, now
}

// youngRunning returns the young transactions that the last page saw running.
func (s *Store) youngRunning() xids.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.young
}

func (r *reader) readLog(ctx context.Context, lanes []*laneRead) error {
	if err := r.pages(ctx, lanes); err != nil {
		return err
	}
	top, late, history := int64(0), false, historyOf(r.saw)
	for _, l := range lanes {
		if l.cur.history != history {
			return otherHistory(l.req.Lane)
		}
		top = max(top, l.cur.pos)
		l.resolved = l.cur.inflight.Minus(r.look.Running)
		if len(l.cur.draining) > 0 {
			l.resolved = l.cur.draining
		}
		late = late || len(l.resolved) > 0
	}
	if r.floor < top {
		return r.store.migrator.RepairSequence(ctx, r.conn, r.saw, r.floor, top)
	}
	if late {
		if err := r.stragglers(ctx, lanes); err != nil {
			return err
		}
	}
	return r.awaitDurable(ctx, lanes)
}

// pages makes the round trip of a read: the sequence first, then snapshot, next
// transaction id and rows in one statement.
func (r *reader) pages(ctx context.Context, lanes []*laneRead) error {
	of := [2]string{r.store.sql.floor, r.sql(r.store.sql.page, r.store.sql.pageFiltered)}
	if r.span != (span{}) {
		of = [2]string{r.store.sql.spanFloor, r.store.sql.span}
	}
	floor, err := r.prepare(ctx, of[0])
	if err != nil {
		return err
	}
	page, err := r.prepare(ctx, of[1])
	if err != nil {
		return err
	}
	ids, pos, limits, scan := newList(len(lanes)), newList(len(lanes)), newList(len(lanes)), newList(len(lanes))
	paged := make([]*laneRead, 0, len(lanes))
	for _, l := range lanes {
		if len(l.cur.draining) == 0 { // what drains goes first: no new page
			paged = append(paged, l)
			ids.add(int64(l.req.Lane))
			pos.add(l.cur.pos)
			limits.add(int64(l.limit))
			scan.add(int64(max(l.limit, scanRows/len(lanes))))
		}
	}
	late, err := r.prepare(ctx, r.sql(r.store.sql.young, r.store.sql.youngFiltered))
	if err != nil {
		return err
	}
	p := r.conn.PgConn().StartPipeline(ctx)
	floor.send(p, nil, nil)
	params := [][]byte{ids.end(), pos.end(), limits.end()}
	if r.filter != nil {
		params = append(append(params, scan.end()), r.filter...)
	}
	read := r.pageRows
	if r.span != (span{}) {
		params, read = [][]byte{params[0], number(r.span.low), number(r.span.high), number(int64(spanLimit(paged)))}, r.spanRows
	}
	page.send(p, params, binaryResults)
	readers := []func(*pgconn.ResultReader) error{r.floorRow, func(rr *pgconn.ResultReader) error { return read(rr, paged) }}
	if params := r.youngLate(lanes); params != nil {
		late.send(p, params, binaryResults)
		readers = append(readers, func(rr *pgconn.ResultReader) error { return r.takeLate(rr, &r.early, youngRows) })
	}
	if err = p.Sync(); err == nil {
		err = results(p, readers...)
	}
	return errors.Join(err, p.Close())
}

var binaryResults = []int16{1} //nolint:gochecknoglobals // a constant that Go has no literal for

// results passes each result of a pipeline to its reader.
func results(p *pgconn.Pipeline, readers ...func(*pgconn.ResultReader) error) error {
	for _, read := range readers {
		res, err := p.GetResults()
		if err != nil {
			return err
		}
		rr, ok := res.(*pgconn.ResultReader)
		if !ok {
			return fmt.Errorf("unexpected answer %T", res)
		}
		err = read(rr)
		if _, cerr := rr.Close(); cerr != nil {
			return cerr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) floorRow(rr *pgconn.ResultReader) error {
	if !rr.NextRow() {
		return nil // Close has the error
	}
	v := rr.Values()
	floor, err := strconv.ParseInt(string(v[0]), 10, 64)
	if err != nil {
		return errRow
	}
	r.floor, r.saw = floor, string(v[1])
	return r.store.checkIdentity(r.saw)
}

// pageRows reads the header row and the records, lane by lane.
func (r *reader) pageRows(rr *pgconn.ResultReader, lanes []*laneRead) error {
	var rec record
	var cur *laneRead
	bytes, n, total, left := 0, 0, 0, 0
	for rr.NextRow() {
		v, bound := r.bounded(rr.Values())
		if len(v) == colCount && len(v[colLane]) == 2 && v[colLane][0] == 0xff {
			if err := r.header(v); err != nil {
				return err
			}
			continue
		}
		if cur == nil || len(v) != colCount || len(v[colLane]) != 2 || int16(binary.BigEndian.Uint16(v[colLane])) != int16(cur.req.Lane) {
			bytes = 0
			if len(v) != colCount || len(v[colLane]) != 2 {
				return errRow
			}
			if cur = r.room.byLane[int16(binary.BigEndian.Uint16(v[colLane]))]; cur == nil {
				return errRow
			}
			cur.page.grow(min(cur.limit, max(r.guess.rows, 4)))
			cur.bound = bound
		}
		if cur.page.cut || len(v[colSeq]) == 0 { // nothing up to the bound
			continue
		}
		if !r.fits(&cur.req, len(cur.page.msgs), total, wireSize(v)) {
			cur.page.cut = true
			n, left = n+1, left+wireSize(v)
			continue
		}
		if err := r.arena.decode(v, &rec); err != nil {
			return err
		}
		before := bytes
		bytes = cur.page.add(&rec, r.now, cur.limit, cur.maxBytes, bytes)
		n, total = n+1, total+bytes-before
	}
	last := sizes{bytes: r.arena.used}
	for _, l := range lanes {
		last.rows = max(last.rows, len(l.page.msgs))
	}
	r.store.sawRows(n, total+left, last)
	if r.within > 0 {
		r.store.sawFull(left > 0 || total > r.within/2)
	}
	r.store.sawPages(lanes)
	return nil
}

// bounded takes how far a filtered page looked off its row, 0 if to the end.
func (r *reader) bounded(v [][]byte) (row [][]byte, bound int64) {
	if r.filter == nil || len(v) != colCount+1 {
		return v, 0
	}
	if b := v[colCount]; len(b) == 8 {
		bound = int64(binary.BigEndian.Uint64(b))
	}
	return v[:colCount], bound
}

// grow makes room for n records, within reason.
func (r *rows) grow(n int) {
	n = min(n, 1024)
	r.msgs = make([]postrider.Message, 0, n)
	r.meta = make([]store.Meta, 0, n)
	r.size = make([]int, 0, n)
}

func (r *reader) header(v [][]byte) error {
	if len(v[colSeq]) != 8 || len(v[colCreatedAt]) != 8 {
		return errRow
	}
	var err error
	r.look, err = xids.NewLook(string(v[colTopic]), int64(binary.BigEndian.Uint64(v[colSeq])))
	r.now = timestamp(v[colCreatedAt])
	r.store.sawRunning(r.look)
	return err
}
