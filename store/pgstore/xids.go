package pgstore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// xidRange is the transaction ids lo <= id < hi.
type xidRange struct{ lo, hi uint64 }

// xidSet is a sorted set of ranges that neither overlap nor touch.
type xidSet []xidRange

func (s xidSet) contains(x uint64) bool {
	i, _ := slices.BinarySearchFunc(s, x, func(r xidRange, x uint64) int {
		switch {
		case r.hi <= x:
			return -1
		case r.lo > x:
			return 1
		}
		return 0
	})
	return i < len(s) && s[i].lo <= x && x < s[i].hi
}

// normal sorts ranges and joins those that overlap or touch.
func normal(ranges []xidRange) xidSet {
	slices.SortFunc(ranges, func(a, b xidRange) int {
		switch {
		case a.lo < b.lo:
			return -1
		case a.lo > b.lo:
			return 1
		}
		return 0
	})
	var out xidSet
	for _, r := range ranges {
		if r.lo >= r.hi {
			continue
		}
		if n := len(out); n > 0 && r.lo <= out[n-1].hi {
			out[n-1].hi = max(out[n-1].hi, r.hi)
			continue
		}
		out = append(out, r)
	}
	return out
}

// minus returns the ids of s that are not in t.
func (s xidSet) minus(t xidSet) xidSet {
	var out xidSet
	j := 0
	for _, r := range s {
		for j < len(t) && t[j].hi <= r.lo {
			j++
		}
		lo := r.lo
		for k := j; k < len(t) && t[k].lo < r.hi; k++ {
			if t[k].lo > lo {
				out = append(out, xidRange{lo, t[k].lo})
			}
			lo = max(lo, t[k].hi)
		}
		if lo < r.hi {
			out = append(out, xidRange{lo, r.hi})
		}
	}
	return out
}

func (s xidSet) union(t xidSet) xidSet { return normal(append(slices.Clone(s), t...)) }

// String is the text of an int8multirange.
func (s xidSet) String() string {
	b := []byte{'{'}
	for i, r := range s {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		b = strconv.AppendUint(b, r.lo, 10)
		b = append(b, ',')
		b = strconv.AppendUint(b, r.hi, 10)
		b = append(b, ')')
	}
	return string(append(b, '}'))
}

// parseMultirange reads the text of an int8multirange.
func parseMultirange(text string) (xidSet, error) {
	bad := fmt.Errorf("multirange %.60q cannot be read", text)
	rest, ok := strings.CutPrefix(text, "{")
	if !ok {
		return nil, bad
	}
	if rest, ok = strings.CutSuffix(rest, "}"); !ok {
		return nil, bad
	}
	var out xidSet
	for rest != "" {
		rest = strings.TrimPrefix(rest, ",")
		end := strings.IndexByte(rest, ')')
		if end < 0 || rest[0] != '[' {
			return nil, bad
		}
		lo, hi, ok := strings.Cut(rest[1:end], ",")
		l, err1 := strconv.ParseUint(lo, 10, 63)
		h, err2 := strconv.ParseUint(hi, 10, 63)
		if !ok || err1 != nil || err2 != nil {
			return nil, bad
		}
		out = append(out, xidRange{l, h})
		rest = rest[end+1:]
	}
	return out, nil
}

// look is what one read saw of the cluster's transactions.
type look struct {
	running xidSet // transactions that had an id and whose rows were invisible
	next    uint64 // every id below was accounted for
}

// newLook builds running(T) from a snapshot's text "xmin:xmax:xip,..." and
// from age('3'::xid), read after the snapshot in the same statement.
//
// xmax is the latest completed id + 1: ids from there up to the next one to be
// given out may be running already and have drawn low numbers.
func newLook(snapshot string, age int64) (look, error) {
	parts := strings.Split(snapshot, ":")
	if len(parts) != 3 {
		return look{}, fmt.Errorf("snapshot %.60q cannot be read", snapshot)
	}
	xmax, err := strconv.ParseUint(parts[1], 10, 63)
	if err != nil {
		return look{}, fmt.Errorf("snapshot %.60q cannot be read", snapshot)
	}
	// age is the distance of the 32-bit counters; the signed difference to the
	// low half of xmax gives the 64-bit id.
	diff := int32(uint32(age) + 3 - uint32(xmax))
	next := uint64(int64(xmax) + int64(diff))
	if diff < 0 {
		return look{}, fmt.Errorf("next transaction id %d lies below the snapshot's %d: age() ran before the snapshot", next, xmax)
	}
	var ranges []xidRange
	if parts[2] != "" {
		for _, t := range strings.Split(parts[2], ",") {
			x, err := strconv.ParseUint(t, 10, 63)
			if err != nil {
				return look{}, fmt.Errorf("snapshot %.60q cannot be read", snapshot)
			}
			ranges = append(ranges, xidRange{x, x + 1})
		}
	}
	ranges = append(ranges, xidRange{xmax, next})
	return look{running: normal(ranges), next: next}, nil
}
