package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/portion"
	"github.com/postrider/postrider/store/mysqlstore/internal/sessions"
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
		p := page{r: r, b: &b, left: math.MaxInt}
		if r.Within > 0 {
			p.left = r.Within - spent
		}
		if r.Parked {
			err = s.readParked(ctx, conn, &p)
		} else {
			lanes[i].fill(&p)
		}
		if err != nil {
			return nil, s.box.Wrap(fmt.Sprintf("read lane %d", r.Lane), err)
		}
		spent += p.size
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
	bodies            map[int64]*record // of all lanes
}

// head is a row without its body.
type head struct {
	seq    int64
	size   int
	passes bool // the filter of the pipe
}

type record struct {
	message postrider.Message
	meta    store.Meta
}

// scan looks at the log and reads what fits of every lane that is not read for parked
// records: first numbers and sizes, by an index that has nothing else, then bodies.
func (s *Store) scan(ctx context.Context, conn *sql.Conn, reads []store.LaneRead) ([]scanned, error) {
	lanes := make([]scanned, len(reads))
	settled, err := s.settledPositions(ctx, conn, reads)
	if err != nil {
		return nil, err
	}
	identity, here := s.leased()
	var positions []holes.Position
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
		positions = append(positions, lanes[i].from)
	}
	if len(positions) == 0 { // of parked records alone
		return lanes, s.asserts(ctx, conn, identity, here)
	}
	seen, err := s.look(ctx, conn, identity, here, positions)
	if err != nil {
		return nil, err
	}
	for i, r := range reads {
		if !r.Parked {
			lanes[i].sight = seen
			lanes[i].late = seen.Late(lanes[i].from)
		}
	}
	if err := s.heads(ctx, conn, reads, lanes, perPart); err != nil {
		return nil, err
	}
	if err := s.late(ctx, conn, reads, lanes); err != nil {
		return nil, err
	}
	bodies, err := s.bodies(ctx, conn, seen.now, choose(reads, lanes))
	s.witness(identity, bodies)
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
func (s *Store) witness(identity string, bodies map[int64]*record) {
	s.eye.mu.Lock()
	defer s.eye.mu.Unlock()
	for seq, r := range bodies {
		if r != nil && seq > s.eye.seen.seq && identity == s.eye.identity {
			s.eye.seen = witness{seq, r.message.ID}
		}
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
func (s *Store) heads(ctx context.Context, q db.Querier, reads []store.LaneRead, lanes []scanned, perPart int64) error {
	filter, err := s.filterOf(ctx, q)
	if err != nil {
		return err
	}
	parts := append(lateParts(reads, lanes, filter), rowParts(reads, lanes, filter, perPart)...)
	if len(parts) == 0 {
		return nil
	}
	rows, err := q.QueryContext(ctx, strings.Join(parts, " UNION ALL "))
	if err != nil {
		return err
	}
	defer rows.Close()
	at := map[store.Lane]int{} // the reads of the log
	for i, r := range reads {
		if !r.Parked {
			at[r.Lane] = i
		}
	}
	for rows.Next() {
		var lane store.Lane
		var late bool
		var h head
		if h.passes, err = db.ScanFiltered(rows, filter, &lane, &late, &h.seq, &h.size); err != nil {
			return err
		}
		i, read := at[lane]
		switch {
		case !read: // the statement is in number order, of all lanes
		case late:
			lanes[i].lateRows = append(lanes[i].lateRows, h)
		case h.seq > lanes[i].from.At:
			lanes[i].rows = append(lanes[i].rows, h)
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
	return rows.Err()
}

// perPart is how many rows the server passes in number order for the price of a part of a
// statement, which it parses and plans.
const perPart = 32

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

// rowParts select the rows between the positions and the tip: lane by lane, or, where few
// numbers are between them, in number order with those of all lanes.
func rowParts(reads []store.LaneRead, lanes []scanned, filter store.Filter, perPart int64) (parts []string) {
	var low, tip int64
	for i := range lanes {
		l, r := &lanes[i], reads[i]
		if r.Parked || l.from.At >= l.Tip {
			continue
		}
		if low, tip = min(low, l.from.At), l.Tip; len(parts) == 0 {
			low = l.from.At
		}
		parts = append(parts, fmt.Sprintf(headColumns+`lane = %d AND seq > %d AND seq <= %d ORDER BY seq LIMIT %d)`, 0, db.Filtered(filter, ""), "lane_seq", r.Lane, l.from.At, l.Tip, looked(r, filter)))
	}
	if len(parts) > 1 && tip-low <= perPart*int64(len(parts)) {
		return []string{fmt.Sprintf(headColumns+`seq > %d AND seq <= %d)`, 0, db.Filtered(filter, ""), "PRIMARY", low, tip)}
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
			chosen, n, size, spent = append(chosen, h.seq), n+1, size+h.size, spent+h.size
		}
	}
	return chosen
}

// bodies reads rows by number.
func (s *Store) bodies(ctx context.Context, q db.Querier, at int64, seqs []int64) (map[int64]*record, error) {
	const most = 2000
	slices.Sort(seqs)
	found := make(map[int64]*record, len(seqs))
	for len(seqs) > 0 {
		n := min(len(seqs), most)
		for _, seq := range seqs[:n] {
			found[seq] = nil
		}
		if err := s.bodiesOf(ctx, q, at, seqs[:n], found); err != nil {
			return nil, err
		}
		seqs = seqs[n:]
	}
	return found, nil
}

func (s *Store) bodiesOf(ctx context.Context, q db.Querier, at int64, seqs []int64, found map[int64]*record) error {
	rows, err := q.QueryContext(ctx, `SELECT seq, `+db.MessageColumns+` FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE `+db.Among(seqs))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		r := new(record)
		if r.message, err = db.ScanMessage(rows, &r.meta.Seq); err != nil {
			return err
		}
		if !r.message.NotBefore.IsZero() {
			r.meta.DueIn = max(0, db.Until(at, r.message.NotBefore.UnixMicro()))
		}
		found[r.meta.Seq] = r
	}
	return rows.Err()
}

// fill takes late rows, and behind them those behind the position.
func (l *scanned) fill(p *page) {
	b, before := p.b, l.from
	if l.held {
		l.stay(p)
		return
	}
	for _, h := range l.lateRows {
		if h.passes && !p.take(l.bodies, h.seq) {
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
		if h.passes && !p.take(l.bodies, h.seq) {
			l.leave(p, l.Position(at, nil))
			return
		}
		at = h.seq
	}
	switch {
	case l.rowsFull:
		at, b.More = l.rows[len(l.rows)-1].seq, true
	default:
		at, b.More = max(at, l.Tip), l.full
	}
	b.Position = db.Encode(l.Position(at, nil), l.history)
}

// leave ends a page that is full. One that took nothing has not moved.
func (l *scanned) leave(p *page, next holes.Position) {
	if p.b.More = true; len(p.b.Messages) == 0 {
		l.stay(p)
		return
	}
	p.b.Position = db.Encode(next, l.history)
}

// stay leaves the lane where it was.
func (l *scanned) stay(p *page) {
	p.b.Position = db.Encode(l.from, l.history)
	if p.r.After != nil {
		p.b.Position = slices.Clone(p.r.After)
	}
}

// page fills a batch up to its limits.
type page struct {
	r    store.LaneRead
	b    *store.Batch
	size int
	left int // bytes that the batch may hold, its first record included
}

// take adds a row of the log, and reports whether it found room: what was not read was
// known to find none. A row that is gone is passed: somebody has deleted it.
func (p *page) take(bodies map[int64]*record, seq int64) bool {
	r, read := bodies[seq]
	if r == nil {
		p.b.More = p.b.More || !read
		return read
	}
	return p.add(r.message, r.meta)
}

// add reports whether the record found room; a batch takes one record whatever its size,
// unless the call is bounded.
func (p *page) add(m postrider.Message, meta store.Meta) bool {
	n, size := len(p.b.Messages), p.size+m.Size()
	if n > 0 && (p.r.MaxRecords > 0 && n >= p.r.MaxRecords || p.r.MaxBytes > 0 && size > p.r.MaxBytes) || size > p.left {
		p.b.More = true
		return false
	}
	p.b.Messages, p.b.Meta, p.size = append(p.b.Messages, m), append(p.b.Meta, meta), size
	return true
}
