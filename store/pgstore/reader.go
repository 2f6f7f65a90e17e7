package pgstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/xids"
)

// reader is one call of Read on one connection.
type reader struct {
	store *Store
	room  *room
	conn  *pgx.Conn
	arena arena
	guess sizes     // how much to make room for
	floor int64     // S: the sequence before the page was read
	saw   string    // the server's identity then
	look  xids.Look // what the page's snapshot saw of transactions
	now   time.Time // the database's clock
	asked xids.Set  // transactions whose late rows came with the page
	early lateRows  // these rows
	waits bool      // the page has arrived and waits until it is durable: its size costs no time any more
	heard []int16   // lanes whose log was read, where the bell wants to know
	span  span      // the numbers to read, if not a page per lane
	quiet bool      // nothing was written since the same read found nothing
	// within bounds the bytes of all batches of the call, 0: nothing does; spent is
	// what the batches made so far hold, and the late rows of all.
	within, spent int
	// most is how many bytes of late rows one answer may bring; with more, they come in pages.
	most int64
	// filter is the pipe's, as the parameters of the function passes; nil: everything passes.
	filter [][]byte
}

// sql chooses the statement of a pipe without or with a filter.
func (r *reader) sql(plain, filtered string) string {
	if r.filter == nil {
		return plain
	}
	return filtered
}

// Late rows are fetched by transaction id up to a number, and up to a size; more are read lane by lane in pages.
const (
	stragglerRows = 2000
	youngRows     = 256 // that come with a page, each of at most its share of the bytes
	lateBytes     = defaultBatchBytes
	cautiousBytes = 1 << 20 // after time ran out
)

// mostLate returns how many bytes of late rows the next read may bring.
func (s *Store) mostLate(within int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := lateBytes
	if s.cautious {
		most = cautiousBytes
	}
	if within > 0 {
		most = min(most, within)
	}
	return int64(most)
}

// stragglers fetches the rows of the transactions that ended behind the
// cursors. Its statement is younger than the page's snapshot: all of them are
// visible or gone by now.
func (r *reader) stragglers(ctx context.Context, lanes []*laneRead) error {
	var all xids.Set
	top, draining := int64(0), false
	ids := newList(len(lanes))
	for _, l := range lanes {
		if len(l.resolved) == 0 {
			continue
		}
		draining = draining || len(l.cur.draining) > 0
		all = all.Union(l.resolved)
		top = max(top, l.cur.pos)
		ids.add(int64(l.req.Lane))
	}
	if draining { // known to be many
		return r.bulk(ctx, lanes)
	}
	late := r.early
	if late.many || len(all.Minus(r.asked)) > 0 {
		late = lateRows{}
		read := func(rr *pgconn.ResultReader) error { return r.takeLate(rr, &late, stragglerRows) }
		sql := r.sql(r.store.sql.stragglers, r.store.sql.stragglersFiltered)
		if err := r.query(ctx, sql, r.lateParams(all, ids, top, stragglerRows, r.most), read); err != nil {
			return err
		}
	}
	if late.many {
		return r.bulk(ctx, lanes)
	}
	r.deal(late.found)
	return nil
}

// lateRows are rows found by transaction id.
type lateRows struct {
	found []record
	bytes int
	many  bool // there are more, or larger ones, than came
}

func (r *reader) lateParams(ids xids.Set, lanes *list, top, rows, bytes int64) [][]byte {
	lo, hi := newList(len(ids)), newList(len(ids))
	for _, x := range ids {
		lo.add(int64(x.Lo))
		hi.add(int64(x.Hi))
	}
	params := [][]byte{lo.end(), hi.end(), lanes.end(), number(top), number(rows), number(bytes)}
	return append(params, r.filter...)
}

// Columns of late rows behind the columns list: whether the row came without its payload, since more is
// there than asked for, and whether the filter lets it pass.
const (
	lateMuch = colCount + iota
	latePasses
	lateCount
)

// takeLate takes late rows, unless some came without their payload or as many as were asked for.
func (r *reader) takeLate(rr *pgconn.ResultReader, late *lateRows, most int) error {
	for n := 1; rr.NextRow(); n++ {
		v := rr.Values()
		if len(v) != lateCount {
			return errRow
		}
		if late.many = late.many || truth(v[lateMuch]) || n == most; late.many || !truth(v[latePasses]) {
			continue
		}
		if r.within > 0 && late.bytes+wireSize(v) > r.within {
			late.many = true
			continue
		}
		var rec record
		if err := r.arena.decode(v, &rec); err != nil {
			return err
		}
		late.bytes += rec.msg.Size()
		late.found = append(late.found, rec)
	}
	return nil
}

// youngLate requests the rows of young transactions in the round trip of the
// page: at a steady rate, the running writers of one read have ended at the
// next. An older transaction may be a bulk load, whose rows must
// not be scanned by every poll; they are requested when it has ended.
func (r *reader) youngLate(lanes []*laneRead) (params [][]byte) {
	young := r.store.youngRunning()
	if len(young) == 0 {
		return nil
	}
	ids, top := newList(len(lanes)), int64(0)
	for _, l := range lanes {
		if len(l.cur.draining) > 0 {
			return nil
		}
		if l.cur.inflight.Overlaps(young) {
			ids.add(int64(l.req.Lane))
			top = max(top, l.cur.pos)
		}
	}
	if top == 0 {
		return nil
	}
	r.asked = young
	return r.lateParams(young, ids, top, youngRows, max(r.most/youngRows, 512))
}

// deal distributes late records to their lanes in seq order.
func (r *reader) deal(found []record) {
	slices.SortFunc(found, func(a, b record) int {
		if a.lane != b.lane {
			return int(a.lane) - int(b.lane)
		}
		return int(min(max(a.seq-b.seq, -1), 1))
	})
	bytes, last := 0, int16(-1)
	for i := range found {
		rec := &found[i]
		l := r.room.byLane[rec.lane]
		if rec.lane != last {
			bytes, last = 0, rec.lane
		}
		if l == nil || rec.seq > l.cur.pos || rec.seq <= max(l.cur.drainSeq, l.cur.low) || !l.resolved.Contains(rec.xid) {
			continue
		}
		bytes = l.late.add(rec, r.now, l.limit, l.maxBytes, bytes)
	}
}

// bulk fetches the next page of late rows of each lane by seq.
func (r *reader) bulk(ctx context.Context, lanes []*laneRead) error {
	n := len(lanes)
	ids, after, pos, limits, sizes := newList(n), newList(n), newList(n), newList(n), newList(n)
	sets := []byte{'{'}
	for _, l := range lanes {
		if len(l.resolved) == 0 {
			continue
		}
		ids.add(int64(l.req.Lane))
		after.add(max(l.cur.low, l.cur.drainSeq))
		pos.add(l.cur.pos)
		limits.add(int64(l.limit) + 1)
		sizes.add(int64(l.maxBytes))
		if len(sets) > 1 {
			sets = append(sets, ',')
		}
		sets = strconv.AppendQuote(sets, l.resolved.String())
	}
	var rec record
	bytes, total, last := 0, 0, int16(-1)
	params := append([][]byte{ids.end(), after.end(), pos.end(), limits.end(), append(sets, '}'), sizes.end(), number(r.most)}, r.filter...)
	return r.query(ctx, r.sql(r.store.sql.bulk, r.store.sql.bulkFiltered), params, func(rr *pgconn.ResultReader) error {
		for rr.NextRow() {
			v := rr.Values()
			if len(v) != lateCount || len(v[colLane]) != 2 || len(v[colSeq]) != 8 {
				return errRow
			}
			lane, seq := int16(binary.BigEndian.Uint16(v[colLane])), int64(binary.BigEndian.Uint64(v[colSeq]))
			if lane != last {
				bytes, last = 0, lane
			}
			l := r.room.byLane[lane]
			switch {
			case l == nil || l.late.cut:
				continue
			case !truth(v[latePasses]):
				l.late.pass(seq, l.limit)
				continue
			case truth(v[lateMuch]) || !r.fits(&l.req, len(l.late.msgs), total, wireSize(v)):
				l.late.cut = true
				continue
			}
			if err := r.arena.decode(v, &rec); err != nil {
				return err
			}
			before := bytes
			bytes = l.late.add(&rec, r.now, l.limit, l.maxBytes, bytes)
			total += bytes - before
		}
		return nil
	})
}

// query is one prepared statement with text parameters and binary results.
type query struct {
	sql    string
	params [][]byte
	read   func(*pgconn.ResultReader) error
}

// query runs one prepared statement: see queries.
func (r *reader) query(ctx context.Context, sql string, params [][]byte, read func(*pgconn.ResultReader) error) error {
	return r.queries(ctx, query{sql, params, read})
}

// queries runs prepared statements in one round trip, under the same planner
// settings as a page: see readSettings. What another server or history answers is refused.
func (r *reader) queries(ctx context.Context, list ...query) error {
	settings, err := r.prepare(ctx, r.store.sql.settings)
	if err != nil {
		return err
	}
	readers := []func(*pgconn.ResultReader) error{func(rr *pgconn.ResultReader) error {
		for rr.NextRow() {
			if err := r.store.checkIdentity(string(rr.Values()[0])); err != nil {
				return err
			}
		}
		return nil
	}}
	prepared := make([]statement, len(list))
	for i, q := range list {
		if prepared[i], err = r.prepare(ctx, q.sql); err != nil {
			return err
		}
		readers = append(readers, q.read)
	}
	p := r.conn.PgConn().StartPipeline(ctx)
	settings.send(p, nil, nil)
	for i, q := range list {
		prepared[i].send(p, q.params, binaryResults)
	}
	if err = p.Sync(); err == nil {
		err = results(p, readers...)
	}
	return errors.Join(err, p.Close())
}

// finish returns the batch of a lane with the position that settles it.
func (r *reader) finish(l *laneRead) store.Batch {
	b, floor, k := store.Batch{Lane: l.req.Lane}, r.floor, r.look
	if l.late.cut && l.late.seen == 0 { // left out for the bytes of others
		b.Position, b.More = l.req.After, true
		return b
	}
	if len(l.cur.draining) > 0 || l.late.cut {
		l.drained(&b)
		return b
	}
	c := l.cur
	room := l.limit - len(l.late.msgs)
	keep, bytes := 0, l.late.bytes()
	for keep < len(l.page.msgs) && keep < room && (keep+len(l.late.msgs) == 0 || bytes+l.page.size[keep] <= l.maxBytes) {
		size := l.page.size[keep]
		if !r.fits(&l.req, len(l.late.msgs)+keep, r.spent, size) {
			break
		}
		bytes, r.spent = bytes+size, r.spent+size
		keep++
	}
	if keep+l.late.seen == 0 && (l.page.cut || len(l.page.msgs) > 0) { // left out as well
		b.Position, b.More = l.req.After, true
		return b
	}
	b.Messages, b.Meta = l.page.msgs[:keep:keep], l.page.meta[:keep:keep]
	if len(l.late.msgs) > 0 {
		b.Messages, b.Meta = append(l.late.msgs, b.Messages...), append(l.late.meta, b.Meta...)
	}
	seen := keep == len(l.page.msgs) && !l.page.cut && len(l.page.msgs) < l.limit // all that was looked at
	whole := seen && l.bound == 0
	pos := c.pos
	if keep > 0 {
		pos = l.page.meta[keep-1].Seq
	}
	if seen {
		pos = max(pos, l.bound)
	}
	if whole && (keep > 0 || len(l.resolved) > 0 || floor-pos > moveAfter) {
		pos = max(pos, floor)
	}
	b.More = !whole
	if pos == c.pos && len(l.resolved) == 0 {
		b.Position = l.req.After
		return b
	}
	if pos == c.pos { // only the past has become shorter
		c.inflight = c.inflight.Minus(l.resolved)
	} else {
		// Transactions of the old set that still run keep the old bound; those
		// that are new began after the position before was read.
		if !c.inflight.Overlaps(k.Running) {
			c.low = max(c.pos, c.floor)
		}
		c.pos, c.inflight, c.next = pos, k.Running, k.Next
	}
	if len(c.inflight) == 0 {
		c.low = 0
	}
	b.Position = c.encode()
	return b
}

// drained completes a batch that has only stragglers.
func (l *laneRead) drained(b *store.Batch) {
	c := l.cur
	b.Messages, b.Meta, b.More = l.late.msgs, l.late.meta, true
	if len(c.draining) == 0 {
		c.inflight, c.draining = c.inflight.Minus(l.resolved), l.resolved
	}
	if l.late.cut {
		c.drainSeq = l.late.last
	} else {
		c.draining, c.drainSeq = nil, 0
	}
	if len(c.inflight) == 0 && len(c.draining) == 0 {
		c.low = 0
	}
	b.Position = c.encode()
}

// cursors loads settled positions from the database.
func (r *reader) cursors(ctx context.Context, lanes []int16) (map[int16]cursor, error) {
	rows, err := r.conn.Query(ctx, r.store.sql.cursors, r.store.opts.Pipe, lanes)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[int16]cursor{}
	for rows.Next() {
		var lane int16
		var raw rawCursor
		var identity string
		if err := rows.Scan(&lane, &raw.pos, &raw.low, &raw.next, &raw.inflight, &raw.draining, &raw.drainSeq, &raw.floor, &identity); err != nil {
			return nil, err
		}
		c, err := raw.cursor()
		if err != nil {
			return nil, fmt.Errorf("lane %d: %w", lane, err)
		}
		c.history = historyOf(identity)
		out[lane] = c
	}
	return out, rows.Err()
}

// rawCursor is a cursor as lane_cursor shows it.
type rawCursor struct {
	pos, low, next, drainSeq, floor int64
	inflight, draining              string
}

func (r rawCursor) cursor() (cursor, error) {
	in, err := xids.Parse(r.inflight)
	if err != nil {
		return cursor{}, err
	}
	out, err := xids.Parse(r.draining)
	if err != nil {
		return cursor{}, err
	}
	return cursor{pos: r.pos, low: r.low, next: uint64(r.next), inflight: in, draining: out, drainSeq: r.drainSeq, floor: r.floor}, nil
}

// list builds the text of an array of numbers.
type list struct{ b []byte }

func newList(n int) *list { return &list{append(make([]byte, 0, 2+8*n), '{')} }

func (l *list) add(v int64) {
	if len(l.b) > 1 {
		l.b = append(l.b, ',')
	}
	l.b = strconv.AppendInt(l.b, v, 10)
}

func number(v int64) []byte { return strconv.AppendInt(nil, v, 10) }

func (l *list) end() []byte { return append(l.b, '}') }
