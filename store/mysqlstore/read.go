package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/portion"
	"github.com/postrider/postrider/store/mysqlstore/internal/records"
	"github.com/postrider/postrider/store/mysqlstore/internal/sessions"
	"github.com/postrider/postrider/store/mysqlstore/internal/span"
)

// Read implements store.Store. After a read that timed out the next ones request less.
func (s *Store) Read(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	if len(reads) == 0 {
		return nil, nil
	}
	var batches []store.Batch
	err := s.onOne(ctx, "read", func(conn *sql.Conn) (err error) {
		batches, err = s.read(ctx, conn, s.portion.Of(reads))
		return err
	})
	s.portion.Learn(ctx, err)
	if slices.ContainsFunc(batches, func(b store.Batch) bool { return len(b.Messages) > 0 }) {
		s.pause(true)
	}
	return batches, err
}

// onOne runs fn on one connection, and so on one server: what a pool has of others, such as of
// a primary of before a failover, is not mixed into it. A connection to another server than
// the one leased is closed.
func (s *Store) onOne(ctx context.Context, what string, fn func(*sql.Conn) error) error {
	conn, err := s.box.DB.Conn(ctx)
	if err != nil {
		return s.box.Wrap(what, err)
	}
	if err = fn(conn); errors.Is(err, store.ErrIdentity) {
		db.Discard(conn)
		return err
	}
	return errors.Join(err, s.box.Wrap(what, conn.Close()))
}

func (s *Store) read(ctx context.Context, conn *sql.Conn, reads []store.LaneRead) ([]store.Batch, error) {
	lanes, err := s.scan(ctx, conn, reads)
	if err != nil {
		return nil, s.box.Wrap("read", err)
	}
	batches := make([]store.Batch, 0, len(reads))
	spent := 0
	for i, r := range reads {
		b := store.Batch{Lane: r.Lane}
		p := records.Page{Read: r, Batch: &b, Left: math.MaxInt}
		if r.Within > 0 {
			p.Left = r.Within - spent
		}
		if r.Parked {
			err = s.readParked(ctx, conn, &p)
		} else {
			lanes[i].fill(&p)
		}
		if err != nil {
			return nil, s.box.Wrap(fmt.Sprintf("read lane %d", r.Lane), err)
		}
		spent += p.Size
		batches = append(batches, b)
	}
	if stuck(reads, lanes, batches) {
		return batches, s.box.Wrap("read", sessions.TooMany(ctx, conn, lanes[0].Open, patience+slack))
	}
	return batches, nil
}

// stuck reports whether a read has nothing although something is there.
func stuck(reads []store.LaneRead, lanes []scanned, batches []store.Batch) bool {
	for i, r := range reads {
		if r.Parked || !lanes[i].stuck || len(batches[i].Messages) > 0 || batches[i].More {
			return false
		}
	}
	return true
}

// scanned is what one lane has for a read.
type scanned struct {
	sight
	from holes.Position
	late holes.Set // not holes any more: their rows in this lane come first
	held bool      // nothing is read: a late row cannot be read in its place

	lateCut, lateFull bool // more ranges than one query names; more rows than were asked for
	lateRows          []head
	rows              []head // behind the position
	rowsFull          bool
	spanned           bool                      // rows are of the span
	upTo              int64                     // rows are all up to this number, if they are not full
	bodies            map[int64]*records.Record // of all lanes
}

// head is a row, with its body if the span had it.
type head struct {
	seq    int64
	size   int
	passes bool // the filter of the pipe
	body   *records.Record
}

// scan looks at the log and reads what fits of every lane that is not read for parked records. Lanes that stand close together
// are read by the look itself, in number order: see package span. Of the others it reads numbers and sizes first, by an index
// that has nothing else, then bodies.
func (s *Store) scan(ctx context.Context, conn *sql.Conn, reads []store.LaneRead) ([]scanned, error) {
	lanes := make([]scanned, len(reads))
	settled, err := s.settledPositions(ctx, conn, reads)
	if err != nil {
		return nil, err
	}
	identity, here := s.leased()
	var apart []span.Lane
	within := 0
	for i, r := range reads {
		if r.Parked {
			continue
		}
		lanes[i].from = settled[r.Lane]
		if r.After != nil {
			if lanes[i].from, err = db.Of(r.Lane, r.After, identity); err != nil {
				return nil, err
			}
		}
		apart, within = append(apart, span.Lane{ID: r.Lane, From: lanes[i].from, Rows: limit(r), Bytes: r.MaxBytes}), max(within, r.Within)
	}
	if len(apart) == 0 { // of parked records alone
		return lanes, s.asserts(ctx, conn, identity, here)
	}
	filter, err := s.filterOf(ctx, conn)
	if err != nil {
		return nil, err
	}
	seen, err := s.look(ctx, conn, identity, here, apart, func(tip int64) (sp span.Span) {
		if filter.IsZero() {
			sp = s.pace.Plan(apart, tip, within)
		}
		return sp
	})
	if err != nil {
		return nil, err
	}
	for i, r := range reads {
		if !r.Parked {
			lanes[i].sight, lanes[i].upTo = seen, seen.Tip
			lanes[i].late = seen.Late(lanes[i].from)
		}
	}
	if err := s.spread(ctx, conn, reads, lanes, &seen); err != nil {
		return nil, err
	}
	if err := s.heads(ctx, conn, reads, lanes, filter); err != nil {
		return nil, err
	}
	if err := s.late(ctx, conn, reads, lanes); err != nil {
		return nil, err
	}
	bodies, err := records.ByNumber(ctx, conn, seen.now, choose(reads, lanes))
	s.witness(identity, seen.rows, bodies)
	for i := range lanes {
		lanes[i].bodies = bodies
	}
	return lanes, err
}

// asserts fails where the database is not the one leased. What is parked in another history says nothing
// of the lanes that the caller knows.
func (s *Store) asserts(ctx context.Context, q db.Querier, identity, here string) error {
	if identity == "" {
		return nil
	}
	var found string
	if err := q.QueryRowContext(ctx, `SELECT `+here+` FROM postrider_info`).Scan(&found); err != nil {
		return err
	}
	return same(identity, found)
}

// same compares the identity that was leased with the one found.
func same(identity, found string) error {
	if identity != "" && identity != found {
		return fmt.Errorf("mysql: leased under %s, found %s: %w", identity, found, store.ErrIdentity)
	}
	return nil
}

// witness remembers the highest row that was read under an identity, which another read may have found changed since.
func (s *Store) witness(identity string, spanned []*records.Record, bodies map[int64]*records.Record) {
	s.eye.mu.Lock()
	defer s.eye.mu.Unlock()
	if identity != s.eye.identity {
		return
	}
	see := func(r *records.Record) {
		if r != nil && r.Meta.Seq > s.eye.seen.seq {
			s.eye.seen = witness{r.Meta.Seq, r.Message.ID}
		}
	}
	for _, r := range spanned {
		see(r)
	}
	for _, r := range bodies {
		see(r)
	}
}

// settledPositions returns those of the lanes that are read from where they were settled.
func (s *Store) settledPositions(ctx context.Context, q db.Querier, reads []store.LaneRead) (map[store.Lane]holes.Position, error) {
	var lanes []store.Lane
	for _, r := range reads {
		if !r.Parked && r.After == nil {
			lanes = append(lanes, r.Lane)
		}
	}
	if len(lanes) == 0 {
		return nil, nil
	}
	return s.box.Positions(ctx, q, lanes, "")
}

// heads reads numbers and sizes of late rows and of those behind the position, of all
// lanes in one statement. It is later than the look, so that every number up to the tip
// that is no hole is visible to it. The index is forced: through another one the server
// would visit uncommitted rows one by one.
func (s *Store) heads(ctx context.Context, q db.Querier, reads []store.LaneRead, lanes []scanned, filter store.Filter) error {
	if parts := append(lateParts(reads, lanes, filter), rowParts(reads, lanes, filter)...); len(parts) > 0 {
		if err := headsOf(ctx, q, strings.Join(parts, " UNION ALL "), reads, lanes, filter); err != nil {
			return err
		}
	}
	for i := range lanes {
		l, most := &lanes[i], looked(reads[i], filter)
		bySeq := func(a, b head) int { return int(a.seq - b.seq) }
		slices.SortFunc(l.lateRows, bySeq) // a union promises no order
		slices.SortFunc(l.rows, bySeq)
		l.rows = l.rows[:min(len(l.rows), most)]
		l.lateFull, l.rowsFull = len(l.lateRows) == most, len(l.rows) == most
	}
	return nil
}

func headsOf(ctx context.Context, q db.Querier, query string, reads []store.LaneRead, lanes []scanned, filter store.Filter) error {
	rows, err := q.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	at := ofLog(reads)
	for rows.Next() {
		var lane store.Lane
		var late bool
		var h head
		if h.passes, err = db.ScanFiltered(rows, filter, &lane, &late, &h.seq, &h.size); err != nil {
			return err
		}
		l := &lanes[at[lane]]
		if late {
			l.lateRows = append(l.lateRows, h)
		} else {
			l.rows = append(l.rows, h)
		}
	}
	return rows.Err()
}

// ofLog returns where the reads of the log are.
func ofLog(reads []store.LaneRead) map[store.Lane]int {
	at := make(map[store.Lane]int, len(reads))
	for i, r := range reads {
		if !r.Parked {
			at[r.Lane] = i
		}
	}
	return at
}

const headColumns = `(SELECT lane, %d AS late, seq, size, %s FROM postrider_outbox FORCE INDEX (%s) WHERE `

// lateParts select the late rows, lane by lane.
func lateParts(reads []store.LaneRead, lanes []scanned, filter store.Filter) (parts []string) {
	for i := range lanes {
		l, r := &lanes[i], reads[i]
		if r.Parked || len(l.late) == 0 {
			continue
		}
		l.lateCut = len(l.late) > db.MostRanges
		some := l.late[:min(len(l.late), db.MostRanges)]
		parts = append(parts, fmt.Sprintf(headColumns+`lane = %d AND %s ORDER BY seq LIMIT %d)`, 1, db.Filtered(filter, ""), "lane_seq", r.Lane, db.Within(some), looked(r, filter)))
	}
	return parts
}

// rowParts select the rows between the positions and the tip, lane by lane.
func rowParts(reads []store.LaneRead, lanes []scanned, filter store.Filter) (parts []string) {
	for i := range lanes {
		if l, r := &lanes[i], reads[i]; !r.Parked && !l.spanned && l.from.At < l.Tip {
			parts = append(parts, fmt.Sprintf(headColumns+`lane = %d AND seq > %d AND seq <= %d ORDER BY seq LIMIT %d)`, 0, db.Filtered(filter, ""), "lane_seq", r.Lane, l.from.At, l.Tip, looked(r, filter)))
		}
	}
	return parts
}

// looked is how many rows of a lane one read looks at: where a filter leaves out most of
// them, more than it returns.
func looked(r store.LaneRead, filter store.Filter) int {
	const filtered = 2000
	if filter.IsZero() {
		return limit(r)
	}
	return max(limit(r), filtered)
}

// filterOf is the pipe's filter, which never changes.
func (s *Store) filterOf(ctx context.Context, q db.Querier) (store.Filter, error) {
	s.mu.Lock()
	known := s.filter
	s.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	filter, err := s.box.Filter(ctx, q)
	if err == nil {
		s.mu.Lock()
		s.filter = &filter
		s.mu.Unlock()
	}
	return filter, err
}

// limit returns one record more than asked for, which shows that there is more.
func limit(r store.LaneRead) int {
	if r.MaxRecords <= 0 {
		return portion.Unbounded
	}
	return r.MaxRecords + 1
}

// choose returns the numbers whose bodies may find room. Sizes in the table leave headers
// out, so it is rather too many than too few.
func choose(reads []store.LaneRead, lanes []scanned) []int64 {
	var chosen []int64
	spent := 0
	for i := range lanes {
		l, r, size, n := &lanes[i], reads[i], 0, 0
		if l.held {
			continue
		}
		for _, h := range slices.Concat(l.lateRows, l.rows) {
			if !h.passes || h.seq > l.from.At && l.Open.Has(h.seq) {
				continue
			}
			fits := n == 0 || (r.MaxRecords <= 0 || n < r.MaxRecords) && (r.MaxBytes <= 0 || size+h.size <= r.MaxBytes)
			if !fits || r.Within > 0 && spent+h.size > r.Within {
				break
			}
			if n, size, spent = n+1, size+h.size, spent+h.size; h.body == nil {
				chosen = append(chosen, h.seq)
			}
		}
	}
	return chosen
}

// fill takes late rows, and behind them those behind the position.
func (l *scanned) fill(p *records.Page) {
	b, before := p.Batch, l.from
	if l.held {
		l.stay(p)
		return
	}
	p.Likely = min(len(l.lateRows)+len(l.rows), limit(p.Read)-1)
	for _, h := range l.lateRows {
		if h.passes && !l.take(p, h) {
			_, left := l.late.Split(h.seq - 1)
			l.leave(p, l.Position(before.At, left))
			return
		}
	}
	if l.lateFull || l.lateCut {
		// What was asked for is delivered: the rest of the late numbers comes next.
		done := l.late[min(len(l.late), db.MostRanges)-1].Last
		if l.lateFull {
			done = l.lateRows[len(l.lateRows)-1].seq
		}
		_, left := l.late.Split(done)
		b.Position, b.More = db.Encode(l.Position(before.At, left), l.history), true
		return
	}
	at := before.At
	for _, h := range l.rows {
		if l.Open.Has(h.seq) { // visible since the look: its predecessors may have been missed
			continue
		}
		if h.passes && !l.take(p, h) {
			l.leave(p, l.Position(at, nil))
			return
		}
		at = h.seq
	}
	switch {
	case l.rowsFull:
		at, b.More = l.rows[len(l.rows)-1].seq, true
	default:
		at, b.More = max(at, l.upTo), l.full || l.upTo < l.Tip
	}
	b.Position = db.Encode(l.Position(at, nil), l.history)
}

// leave ends a page that is full. One that took nothing has not moved.
func (l *scanned) leave(p *records.Page, next holes.Position) {
	if p.Batch.More = true; len(p.Batch.Messages) == 0 {
		l.stay(p)
		return
	}
	p.Batch.Position = db.Encode(next, l.history)
}

// stay leaves the lane where it was.
func (l *scanned) stay(p *records.Page) {
	p.Batch.Position = db.Encode(l.from, l.history)
	if p.Read.After != nil {
		p.Batch.Position = slices.Clone(p.Read.After)
	}
}

// take adds a row of the log, and reports whether it found room: what was not read was
// known to find none. A row that is gone is passed: somebody has deleted it.
func (l *scanned) take(p *records.Page, h head) bool {
	r, read := h.body, true
	if r == nil {
		r, read = l.bodies[h.seq]
	}
	if r == nil {
		p.Batch.More = p.Batch.More || !read
		return read
	}
	return p.Add(r.Message, r.Meta)
}
