package pgstore

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"sort"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
)

// span is a range of numbers that a read scans for all of its lanes at once. It visits a block
// of the table once, where a page per lane visits it once per lane: see docs/reading.md.
// The zero span is no range: each lane has a page.
type span struct{ low, high int64 }

const (
	spanLanes = 8    // least lanes of a span
	spanRows  = 1024 // least rows of a span
	spanRest  = 16   // reads with pages after a span that fetched many rows in vain, or few at all
	spanWait  = 4    // most reads that leave a lane out which stands ahead of the others
	// spanShare is the least assumed part of a span's numbers that have rows of its lanes.
	spanShare = 1.0 / 16
)

// pace is what the reads of the log have shown so far.
type pace struct {
	least  int                 // rows of a span: spanRows
	pause  int                 // of spans, in reads: spanRest
	behind map[store.Lane]bool // lanes in which their last read left rows
	apart  map[store.Lane]int  // lanes that stand elsewhere: how many reads left each out
	rest   int                 // reads with pages before the next span
	spans  int                 // so far
	share  float64             // part of the last span's numbers that had rows of one of its lanes, on average
}

func newPace() pace {
	return pace{least: spanRows, pause: spanRest, behind: map[store.Lane]bool{}, apart: map[store.Lane]int{}}
}

// inStep returns the lanes to read now, with a span if they stand close together. If most do,
// the others are left out once, or a few times where this brings those behind up to them. If
// not, half of the lanes are left out in the same way: those ahead. Reads of different lanes
// take turns, so each lane's own turn is noted.
func (r *reader) inStep(lanes []*laneRead) []*laneRead {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	p := &r.store.pace
	p.rest = max(p.rest-1, 0)
	var log []*laneRead
	want, behind := 0, 0
	for _, l := range lanes {
		if len(l.cur.draining) == 0 {
			log, want = append(log, l), want+l.limit
			if p.behind[l.req.Lane] {
				behind++
			}
		}
	}
	if r.filter != nil || behind <= len(log)/2 || p.rest > 0 || len(log) < spanLanes || want < p.least {
		return lanes
	}
	if p.share == 0 {
		p.share = 1 / float64(r.store.opts.Lanes)
	}
	// A lane that a span cuts off holds the next span back: three quarters of its limit are
	// the mean of 96 rows that chance seldom passes.
	width := int64(float64(want) * 3 / 4 / min(max(p.share*float64(len(log)), spanShare), 1))
	slices.SortFunc(log, func(a, b *laneRead) int { return cmp.Compare(a.cur.pos, b.cur.pos) })
	first, n := densest(log, width)
	if n < len(log)*3/4 {
		first, n = 0, (len(log)+1)/2 // those behind come up to the others
	}
	in, others := log[first:first+n], slices.Concat(log[:first], log[first+n:])
	if slices.ContainsFunc(others, func(l *laneRead) bool {
		waited := p.apart[l.req.Lane]
		return waited >= spanWait || waited > 0 && l.cur.pos < in[0].cur.pos
	}) {
		in, others = others, in
	}
	if low := in[0].cur.pos; len(in) >= spanLanes && in[len(in)-1].cur.pos-low <= width {
		r.span = span{low: low, high: low + width}
	}
	for _, l := range in {
		delete(p.apart, l.req.Lane)
	}
	for _, l := range others {
		p.apart[l.req.Lane]++
	}
	kept := lanes[:0]
	for _, l := range lanes {
		if slices.Contains(others, l) {
			r.room.left = append(r.room.left, store.Batch{Lane: l.req.Lane, Position: l.req.After, More: true})
			continue
		}
		kept = append(kept, l)
	}
	return kept
}

// densest returns the longest run of lanes, sorted by position, whose positions differ by
// at most width.
func densest(lanes []*laneRead, width int64) (first, n int) {
	from := 0
	for i, l := range lanes {
		for l.cur.pos-lanes[from].cur.pos > width {
			from++
		}
		if i+1-from > n {
			first, n = from, i+1-from
		}
	}
	return first, n
}

// spanLimit is the number of rows above which a span's answer is cut off.
func spanLimit(lanes []*laneRead) int {
	n := 0
	for _, l := range lanes {
		n += 2 * l.limit
	}
	return n
}

// spanRows reads the header row and the records, in the order in which they lie.
func (r *reader) spanRows(rr *pgconn.ResultReader, lanes []*laneRead) error {
	var rec record
	n, old, bytes := 0, 0, 0
	most := cmp.Or(r.within, defaultBatchBytes)
	for rr.NextRow() {
		v := rr.Values()
		if len(v) != colCount || len(v[colLane]) != 2 || len(v[colSeq]) != 8 {
			return errRow
		}
		if v[colLane][0] == 0xff {
			if err := r.header(v); err != nil {
				return err
			}
			continue
		}
		n++
		l := r.room.byLane[int16(binary.BigEndian.Uint16(v[colLane]))]
		if l == nil {
			return errRow
		}
		seq, size := int64(binary.BigEndian.Uint64(v[colSeq])), wireSize(v)
		switch {
		case seq <= l.cur.pos:
			old++
			continue
		case bytes+size > most:
			l.lost = min(cmp.Or(l.lost, math.MaxInt64), seq)
			continue
		case l.page.msgs == nil:
			l.arena.step = arenaStep
			l.page.grow(l.limit)
		}
		if err := l.arena.decode(v, &rec); err != nil {
			return err
		}
		l.page.add(&rec, r.now, math.MaxInt, math.MaxInt, 0)
		bytes += size
	}
	r.trimSpan(lanes, n, old)
	return nil
}

// trimSpan sorts what a span has found by number, and applies the limits of lanes and call. Old
// rows had been read before: a span brings its lanes in step.
func (r *reader) trimSpan(lanes []*laneRead, found, old int) {
	used, total, last, end := 0, 0, sizes{}, r.span.high >= r.floor
	whole := found < spanLimit(lanes) // else any lane may lack any row
	lost := false                     // a record that has no room at all needs the rules of a page
	for _, l := range lanes {
		p := &l.page
		sort.Sort(p)
		keep, bytes := 0, 0
		for whole && keep < min(len(p.meta), l.limit) && (l.lost == 0 || p.meta[keep].Seq < l.lost) {
			size := p.size[keep]
			if keep > 0 && bytes+size > l.maxBytes || !r.fits(&l.req, keep, total, size) {
				break
			}
			keep, bytes, total = keep+1, bytes+size, total+size
		}
		lost = lost || l.lost > 0
		p.cut = !whole || l.lost > 0 || keep < len(p.meta)
		clear(p.msgs[keep:])
		p.msgs, p.meta, p.size, p.seen = p.msgs[:keep], p.meta[:keep], p.size[:keep], keep
		if !end {
			l.bound = r.span.high
		}
		used += keep
		last.rows, last.bytes = max(last.rows, keep), last.bytes+l.arena.used
	}
	r.store.sawRows(used, total, last)
	if r.within > 0 {
		r.store.sawFull(lost || total > r.within/2)
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	p := &r.store.pace
	p.spans++
	for _, l := range lanes {
		p.behind[l.req.Lane] = !end || l.page.cut
	}
	share := float64(found) / float64(r.span.high-r.span.low)
	// Few rows may mean a gap of numbers, a hundred thousand million wide after a roll of
	// partitions: a page passes it at once.
	if !whole || lost || used < (found-old)*3/4 || !end && share < spanShare {
		p.rest = p.pause
	}
	if whole && !end && share >= spanShare {
		p.share = share / float64(len(lanes))
	}
}

// sawPages notes in which lanes a page left rows.
func (s *Store) sawPages(lanes []*laneRead) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range lanes {
		s.pace.behind[l.req.Lane] = l.page.cut || len(l.page.msgs) == l.limit
	}
}

// Len, Less and Swap implement sort.Interface, by number.
func (r *rows) Len() int           { return len(r.meta) }
func (r *rows) Less(i, j int) bool { return r.meta[i].Seq < r.meta[j].Seq }
func (r *rows) Swap(i, j int) {
	r.msgs[i], r.msgs[j] = r.msgs[j], r.msgs[i]
	r.meta[i], r.meta[j] = r.meta[j], r.meta[i]
	r.size[i], r.size[j] = r.size[j], r.size[i]
}
