package holes

import (
	"encoding/binary"
	"errors"
	"slices"
	"sort"
)

// Range is the numbers from First to Last, both included.
type Range struct{ First, Last int64 }

// Set is a set of numbers as ascending ranges that neither overlap nor touch. Its
// methods change nothing.
type Set []Range

// Of returns the set of some numbers in any order.
func Of(numbers []int64) Set {
	sorted := slices.Sorted(slices.Values(numbers))
	var s Set
	for _, n := range sorted {
		s = s.push(Range{n, n})
	}
	return s
}

// push adds a range that begins at or behind the last one.
func (s Set) push(r Range) Set {
	if n := len(s); n > 0 && r.First <= s[n-1].Last+1 {
		s[n-1].Last = max(s[n-1].Last, r.Last)
		return s
	}
	return append(s, r)
}

// Has reports whether n is in the set.
func (s Set) Has(n int64) bool {
	i := sort.Search(len(s), func(i int) bool { return s[i].Last >= n })
	return i < len(s) && s[i].First <= n
}

// Count is how many numbers are in the set.
func (s Set) Count() (n int64) {
	for _, r := range s {
		n += r.Last - r.First + 1
	}
	return n
}

// Split returns the numbers up to n, and those above it.
func (s Set) Split(n int64) (below, above Set) {
	for _, r := range s {
		if r.First <= n {
			below = append(below, Range{r.First, min(r.Last, n)})
		}
		if r.Last > n {
			above = append(above, Range{max(r.First, n+1), r.Last})
		}
	}
	return below, above
}

// Or returns the union.
func (s Set) Or(o Set) Set {
	all := slices.Concat(s, o)
	slices.SortFunc(all, func(a, b Range) int {
		switch {
		case a.First < b.First:
			return -1
		case a.First > b.First:
			return 1
		}
		return 0
	})
	var u Set
	for _, r := range all {
		u = u.push(r)
	}
	return u
}

// Minus returns the numbers of s that are not in o.
func (s Set) Minus(o Set) Set {
	var left Set
	for _, r := range s {
		i := sort.Search(len(o), func(i int) bool { return o[i].Last >= r.First })
		for ; i < len(o) && o[i].First <= r.Last; i++ {
			if o[i].First > r.First {
				left = append(left, Range{r.First, o[i].First - 1})
			}
			r.First = o[i].Last + 1
		}
		if r.First <= r.Last {
			left = append(left, r)
		}
	}
	return left
}

// And returns the numbers that are in both.
func (s Set) And(o Set) Set { return s.Minus(s.Minus(o)) }

// Position says how far a lane was read: a number is settled iff it is at most At and
// not in Open.
type Position struct {
	At   int64
	Open Set
}

// Settled reports whether the lane is done with number n.
func (p Position) Settled(n int64) bool { return n <= p.At && !p.Open.Has(n) }

var errPosition = errors.New("the position was not made by this store")

// mark is the first byte of an encoded position.
const mark = 'h'

// Encode returns the position as bytes. Equal positions have equal bytes.
func (p Position) Encode() []byte {
	b := binary.AppendUvarint([]byte{mark}, uint64(p.At))
	last := int64(0)
	for _, r := range p.Open {
		b = binary.AppendUvarint(b, uint64(r.First-last))
		b = binary.AppendUvarint(b, uint64(r.Last-r.First))
		last = r.Last
	}
	return b
}

// Decode reads what Encode wrote.
func Decode(b []byte) (p Position, err error) {
	if len(b) == 0 || b[0] != mark {
		return p, errPosition
	}
	b = b[1:]
	number := func() int64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<62 {
			err = errPosition
			return 0
		}
		b = b[n:]
		return int64(v)
	}
	p.At = number()
	for last := int64(0); len(b) > 0 && err == nil; {
		r := Range{First: last + number()}
		r.Last = r.First + number()
		if r.First <= last || r.Last > p.At || r.Last < r.First {
			return Position{}, errPosition
		}
		p.Open, last = append(p.Open, r), r.Last
	}
	if err != nil {
		return Position{}, err
	}
	return p, nil
}
