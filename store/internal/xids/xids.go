// Package xids computes with the transaction ids of PostgreSQL: sets of ids, and the running
// transactions of a snapshot.
package xids

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Range has the transaction ids Lo <= id < Hi.
type Range struct{ Lo, Hi uint64 }

// Set is a sorted set of ranges that neither overlap nor touch.
type Set []Range

// Contains reports whether x is in s.
func (s Set) Contains(x uint64) bool {
	i, _ := slices.BinarySearchFunc(s, x, func(r Range, x uint64) int {
		switch {
		case r.Hi <= x:
			return -1
		case r.Lo > x:
			return 1
		}
		return 0
	})
	return i < len(s) && s[i].Lo <= x && x < s[i].Hi
}

// normal sorts ranges and joins overlapping and adjacent ones.
func normal(ranges []Range) Set {
	slices.SortFunc(ranges, func(a, b Range) int {
		switch {
		case a.Lo < b.Lo:
			return -1
		case a.Lo > b.Lo:
			return 1
		}
		return 0
	})
	var out Set
	for _, r := range ranges {
		if r.Lo >= r.Hi {
			continue
		}
		if n := len(out); n > 0 && r.Lo <= out[n-1].Hi {
			out[n-1].Hi = max(out[n-1].Hi, r.Hi)
			continue
		}
		out = append(out, r)
	}
	return out
}

// Minus returns the ids of s that are not in t.
func (s Set) Minus(t Set) Set {
	var out Set
	j := 0
	for _, r := range s {
		for j < len(t) && t[j].Hi <= r.Lo {
			j++
		}
		lo := r.Lo
		for k := j; k < len(t) && t[k].Lo < r.Hi; k++ {
			if t[k].Lo > lo {
				out = append(out, Range{lo, t[k].Lo})
			}
			lo = max(lo, t[k].Hi)
		}
		if lo < r.Hi {
			out = append(out, Range{lo, r.Hi})
		}
	}
	return out
}

// Union returns the ids that are in s or t.
func (s Set) Union(t Set) Set { return normal(append(slices.Clone(s), t...)) }

// Overlaps reports whether an id is in both sets.
func (s Set) Overlaps(t Set) bool {
	i, j := 0, 0
	for i < len(s) && j < len(t) {
		switch {
		case s[i].Hi <= t[j].Lo:
			i++
		case t[j].Hi <= s[i].Lo:
			j++
		default:
			return true
		}
	}
	return false
}

// String returns the text of an int8multirange.
func (s Set) String() string {
	b := []byte{'{'}
	for i, r := range s {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		b = strconv.AppendUint(b, r.Lo, 10)
		b = append(b, ',')
		b = strconv.AppendUint(b, r.Hi, 10)
		b = append(b, ')')
	}
	return string(append(b, '}'))
}

// Parse parses the text of an int8multirange.
func Parse(text string) (Set, error) {
	bad := fmt.Errorf("multirange %.60q cannot be read", text)
	rest, ok := strings.CutPrefix(text, "{")
	if !ok {
		return nil, bad
	}
	if rest, ok = strings.CutSuffix(rest, "}"); !ok {
		return nil, bad
	}
	var out Set
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
		out = append(out, Range{l, h})
		rest = rest[end+1:]
	}
	return out, nil
}

// Look has the cluster's transactions at one read.
type Look struct {
	Running Set    // transactions with an id whose rows were invisible
	Next    uint64 // every lower id is accounted for
}

// LookSQL selects the arguments of NewLook: the age, then the snapshot. It must run in a
// transaction without an id, because age() would return that id.
const LookSQL = `SELECT age('3'::xid)::bigint, pg_current_snapshot()::text`

// NewLook builds running(T) from a snapshot's text "xmin:xmax:xip,..." and
// from age('3'::xid), read after the snapshot in the same statement.
//
// xmax is the latest completed id + 1: ids from there up to the next id may already be running
// and have drawn low numbers.
func NewLook(snapshot string, age int64) (Look, error) {
	parts := strings.Split(snapshot, ":")
	if len(parts) != 3 {
		return Look{}, fmt.Errorf("snapshot %.60q cannot be read", snapshot)
	}
	xmax, err := strconv.ParseUint(parts[1], 10, 63)
	if err != nil {
		return Look{}, fmt.Errorf("snapshot %.60q cannot be read", snapshot)
	}
	// age is the distance of the 32-bit counters. The signed difference to the low half of
	// xmax gives the 64-bit id.
	diff := int32(uint32(age) + 3 - uint32(xmax))
	next := uint64(int64(xmax) + int64(diff))
	if diff < 0 {
		return Look{}, fmt.Errorf("next transaction id %d is below the snapshot's %d: age() ran before the snapshot", next, xmax)
	}
	var ranges []Range
	if parts[2] != "" {
		for _, t := range strings.Split(parts[2], ",") {
			x, err := strconv.ParseUint(t, 10, 63)
			if err != nil {
				return Look{}, fmt.Errorf("snapshot %.60q cannot be read", snapshot)
			}
			ranges = append(ranges, Range{x, x + 1})
		}
	}
	ranges = append(ranges, Range{xmax, next})
	return Look{Running: normal(ranges), Next: next}, nil
}

// Of returns the set of these ids.
func Of(ids ...uint64) Set {
	ranges := make([]Range, len(ids))
	for i, x := range ids {
		ranges[i] = Range{x, x + 1}
	}
	return normal(ranges)
}

// Ended reports whether the look saw a transaction as ended. Its id has 32 bits; the next id
// of the look gives the others.
func (l *Look) Ended(id uint32) bool {
	xid := l.Next&^(1<<32-1) | uint64(id)
	switch diff := int64(xid - l.Next); {
	case diff >= 1<<31:
		xid -= 1 << 32
	case diff < -1<<31:
		xid += 1 << 32
	}
	return xid < l.Next && !l.Running.Contains(xid)
}

// EndedAll reports whether the look saw all transactions as ended that another one saw running.
func (l *Look) EndedAll(of *Look) bool {
	n := len(of.Running)
	return (n == 0 || of.Running[n-1].Hi <= l.Next) && !of.Running.Overlaps(l.Running)
}
