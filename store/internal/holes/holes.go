// Package holes reads an append-only log whose numbers are drawn before its rows
// are visible, and finds every row once, as a pure state machine: numbers and time
// come in as values, and the caller does the queries. It is for databases that number
// rows from one counter and cannot list the transactions that run.
//
// A hole is a number below the highest visible one that has not been seen. It is kept
// until its row is seen or it is dead. One look at the database takes these steps,
// each a statement that begins after the one before has ended:
//
//  1. List the visible numbers above the tip: [Tracker.Listed].
//  2. Probe the holes: [Tracker.Found]. A row that was committed before another row's
//     number was drawn has the lower number. Since the probe is later than the list,
//     no row can be taken whose predecessor is missed. Where the probe takes several
//     statements, they go from the highest number down, for the same reason.
//  3. Every second or so, ask for the start of the oldest statement that runs. A number is
//     drawn inside a statement, so a hole that was seen before that start has its row
//     in the table, or never: [Tracker.Suspects].
//  4. Read these numbers without isolation. Those that are missing are dead: [Tracker.Bury].
//
// Rows that are rolled back and committed in turns leave holes that are many. [Tracker.Fit]
// bounds the ranges: what does not fit waits.
//
// What a look found is a [Look]. It says for a lane's [Position] which rows are late,
// up to which number the lane can be read, and what the next position is.
package holes

import (
	"slices"
	"sort"
	"time"
)

// hole is a range of numbers that were first missed at the same time.
type hole struct {
	Range
	seen time.Duration
}

// Tracker is what one reader remembers of a log. Nothing is lost with it: positions
// hold all that matters. Its zero value has seen nothing. It is not safe for
// concurrent use.
type Tracker struct {
	tip  int64
	open []hole // ascending, disjoint
}

// Tip is the highest number that was classified: each number up to it is a hole, was
// seen, or is dead.
func (t *Tracker) Tip() int64 { return t.tip }

// Open returns the holes.
func (t *Tracker) Open() Set {
	var s Set
	for _, h := range t.open {
		s = s.push(h.Range)
	}
	return s
}

// Adopt takes over what a position knows. now is the reader's clock.
func (t *Tracker) Adopt(p Position, now time.Duration) {
	t.keep(func(h hole) Set {
		known, rest := Set{h.Range}.Split(p.At)
		return append(known.And(p.Open), rest...)
	})
	if p.At <= t.tip {
		return
	}
	_, above := p.Open.Split(t.tip)
	for _, r := range above {
		t.open = append(t.open, hole{r, now})
	}
	t.tip = p.At
}

// Listed takes the numbers that are visible above the tip, ascending and none left out
// up to the last one. now is read after the list was.
func (t *Tracker) Listed(numbers []int64, now time.Duration) {
	for _, n := range numbers {
		if n <= t.tip {
			continue
		}
		if n > t.tip+1 {
			t.open = append(t.open, hole{Range{t.tip + 1, n - 1}, now})
		}
		t.tip = n
	}
}

// Found takes the numbers among the holes that are visible, in any order.
func (t *Tracker) Found(numbers []int64) { t.drop(Of(numbers)) }

// Keep returns what Fit may return to.
func (t *Tracker) Keep() Tracker { return Tracker{t.tip, slices.Clone(t.open)} }

// Fit is called after Found, with what the list and the probe returned, and when the
// list was read. Where the holes are more than most ranges, it takes the numbers from
// the lowest on as far as they fit and forgets the others, so that no row is taken
// whose predecessor is left. It reports whether all of it fitted.
func (t *Tracker) Fit(before Tracker, listed, found []int64, now time.Duration, most int) bool {
	if len(t.open) <= most {
		return true
	}
	all := slices.Sorted(slices.Values(slices.Concat(listed, found)))
	upTo := func(n int) Tracker {
		cut := before.Keep()
		if n > 0 {
			low := func(numbers []int64) []int64 {
				return slices.DeleteFunc(slices.Clone(numbers), func(v int64) bool { return v > all[n-1] })
			}
			cut.Listed(low(listed), now)
			cut.Found(low(found))
		}
		return cut
	}
	*t = upTo(sort.Search(len(all), func(n int) bool { return len(upTo(n+1).open) > max(most, len(before.open)) }))
	return false
}

// Suspects returns the holes that were seen before the time given, which is when the
// oldest statement began that runs now, or now when none runs.
func (t *Tracker) Suspects(began time.Duration) Set {
	var s Set
	for _, h := range t.open {
		if h.seen < began {
			s = s.push(h.Range)
		}
	}
	return s
}

// Bury drops the suspects that a read without isolation, begun after the question for
// the oldest statement was answered, did not find. It returns what it dropped.
func (t *Tracker) Bury(suspects Set, alive []int64) Set {
	dead := suspects.Minus(Of(alive)).And(t.Open())
	t.drop(dead)
	return dead
}

func (t *Tracker) drop(s Set) {
	if len(s) > 0 {
		t.keep(func(h hole) Set { return Set{h.Range}.Minus(s) })
	}
}

// keep replaces each hole by what is left of it.
func (t *Tracker) keep(left func(hole) Set) {
	var open []hole
	for _, h := range t.open {
		for _, r := range left(h) {
			open = append(open, hole{r, h.seen})
		}
	}
	t.open = open
}

// Look returns what the tracker knows now.
func (t *Tracker) Look() Look { return Look{Tip: t.tip, Open: t.Open()} }

// Look is what one look at the log found. Every row up to Tip that is not in Open is
// visible to statements that begin later.
type Look struct {
	Tip  int64
	Open Set
}

// Late returns the numbers that a lane has passed and that are no holes any more: their
// rows in that lane come first, ascending. The position must have been adopted.
func (l Look) Late(p Position) Set { return p.Open.Minus(l.Open) }

// Position returns the position of a lane that is read up to the number at, which is
// at most Tip, but for the late rows that are left.
func (l Look) Position(at int64, left Set) Position {
	open, _ := l.Open.Split(at)
	return Position{At: at, Open: open.Or(left)}
}
