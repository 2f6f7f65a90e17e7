// Package span plans reads in number order. A page per lane visits an index, and then a row of the table by its
// number, for each message; a span is one range of the table for all lanes that stand close together.
package span

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/records"
)

const (
	// perLane is how many rows the server passes for the price of a page.
	perLane = 32
	// fewest is how many lanes are far from the tip, at least, for a span.
	fewest = 8
	// rest is how many reads have pages after a span that found few rows.
	rest = 16
	// least is the part of a span's numbers that has rows of its lanes, at least.
	least = 1.0 / 16
	// mostRows and mostBytes bound a span, and fewRows is what it may have although the lanes have room for less: it lists
	// the numbers of all lanes. With room for less than leastRows it is not worth it.
	mostRows, fewRows, leastRows = 10_000, 1000, 64
	mostBytes                    = 16 << 20
	// times is how much larger than the mean a row is that a span leaves out.
	times = 4
)

// Lane is one that is read.
type Lane struct {
	ID    store.Lane
	From  holes.Position
	Rows  int // that it takes at most
	Bytes int // the same; 0 means no limit
}

// Span is what one statement reads. The zero value reads nothing.
type Span struct {
	Low  int64        // it begins above
	Rows int          // that it has at most
	in   []store.Lane // ascending
	most int          // size of a row that it has whole
	far  bool
}

// Has reports whether a lane is read.
func (s *Span) Has(lane store.Lane) bool {
	_, is := slices.BinarySearch(s.in, lane)
	return is
}

// Query selects the rows, and all numbers above the tip, ascending.
func (s *Span) Query(tip int64) string {
	lanes := "lane IN (" + db.Numbers(s.in) + ")"
	return fmt.Sprintf(`SELECT %s FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE seq > %d AND (seq > %d OR %s) ORDER BY seq LIMIT %d`,
		records.Columns(fmt.Sprintf("size <= %d AND %s", s.most, lanes)), s.Low, tip, lanes, s.Rows)
}

// Some selects some of the rows by number.
func (s *Span) Some(set holes.Set) string {
	return fmt.Sprintf(`SELECT %s FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE `, records.Columns(fmt.Sprintf("size <= %d", s.most))) + db.Within(set)
}

// Pace is what spans have shown so far. It is safe for concurrent use.
type Pace struct {
	mu    sync.Mutex
	share float64 // part of the last span's numbers that had rows of its lanes
	size  int     // mean of its rows
	rest  int     // reads with pages before the next span
}

// Plan returns the span for lanes, the zero one where pages cost less. within are the most bytes that it may read.
func (p *Pace) Plan(lanes []Lane, tip int64, within int) Span {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(lanes) == 0 {
		return Span{}
	}
	in := slices.SortedFunc(slices.Values(lanes), func(a, b Lane) int { return cmp.Compare(a.From.At, b.From.At) })
	far := tip-in[0].From.At > int64(perLane*len(in))
	if far {
		if p.rest > 0 {
			p.rest--
			return Span{}
		}
		if in = densest(in, p.width(in)/2); len(in) < max(fewest, len(lanes)/2) {
			return Span{}
		}
	}
	s := Span{Low: in[0].From.At, far: far}
	bytes := 0
	for _, l := range in {
		s.in, bytes = append(s.in, l.ID), bytes+cmp.Or(l.Bytes, mostBytes)
	}
	slices.Sort(s.in)
	bytes = min(bytes, cmp.Or(within, mostBytes), mostBytes)
	room := bytes / (times * max(p.size, 256))
	if room < leastRows { // of large messages, perhaps not for ever
		p.size -= p.size / 8
		return Span{}
	}
	s.Rows = min(max(rows(in), min(fewRows, fewest*all(in))), room, mostRows)
	s.most = bytes / s.Rows
	return s
}

// rows is how many rows of a span find room: lanes that chance gives more than the mean hold the next span back.
func rows(in []Lane) int { return all(in) * 3 / 4 }

func all(in []Lane) (n int) {
	for _, l := range in {
		n += min(l.Rows, mostRows)
	}
	return n
}

// width is how many numbers the rows are likely to lie in.
func (p *Pace) width(in []Lane) int64 {
	return int64(float64(rows(in)) / min(max(cmp.Or(p.share, 1), least), 1))
}

// densest returns the most lanes, sorted by position, whose positions differ by at most width.
func densest(lanes []Lane, width int64) (most []Lane) {
	from := 0
	for i, l := range lanes {
		for l.From.At-lanes[from].From.At > width {
			from++
		}
		if i+1-from > len(most) {
			most = lanes[from : i+1]
		}
	}
	return most
}

// Learn takes what a span has brought: how many rows of its lanes, their bytes, and up to which number, if it was cut off there.
func (p *Pace) Learn(s Span, found, bytes int, upTo int64, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if found > 0 {
		p.size = bytes / found
	}
	if !cut || !s.far {
		return
	}
	p.share = float64(found) / float64(upTo-s.Low)
	if p.share < least {
		p.rest = rest
	}
}
