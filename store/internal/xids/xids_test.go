package xids

import (
	"math/rand/v2"
	"testing"
)

func randomSet(rnd *rand.Rand) Set {
	var r []Range
	for range rnd.IntN(6) {
		lo := uint64(rnd.IntN(30))
		r = append(r, Range{lo, lo + uint64(rnd.IntN(6))})
	}
	return normal(r)
}

func TestSetsAgainstMembership(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		a, b := randomSet(rnd), randomSet(rnd)
		minus, union, both := a.Minus(b), a.Union(b), false
		for x := range uint64(40) {
			if minus.Contains(x) != (a.Contains(x) && !b.Contains(x)) || union.Contains(x) != (a.Contains(x) || b.Contains(x)) {
				t.Fatalf("%v and %v at %d: minus %v, union %v", a, b, x, minus, union)
			}
			both = both || a.Contains(x) && b.Contains(x)
		}
		if a.Overlaps(b) != both {
			t.Fatalf("overlaps(%v, %v) is %v", a, b, !both)
		}
		back, err := Parse(a.String())
		if err != nil || back.String() != a.String() {
			t.Fatalf("%v became %v, %v", a, back, err)
		}
	}
}

func TestLookCountsIDsAboveXmax(t *testing.T) {
	for _, c := range []struct {
		snapshot string
		age      int64
		running  string
		next     uint64
	}{
		{"10:10:", 7, "{}", 10},
		{"10:12:10,11", 11, "{[10,14)}", 14},
		{"10:12:10", 9, "{[10,11)}", 12},
		// The 32-bit counter has wrapped around; age is signed.
		{"4294967290:4294967300:4294967295", 4, "{[4294967295,4294967296),[4294967300,4294967303)}", 4294967303},
		{"8589934000:8589934000:", -592 - 3 + 5, "{[8589934000,8589934005)}", 8589934005},
	} {
		k, err := NewLook(c.snapshot, c.age)
		if err != nil || k.Running.String() != c.running || k.Next != c.next {
			t.Errorf("%s, age %d: %v next %d, %v; want %s next %d", c.snapshot, c.age, k.Running, k.Next, err, c.running, c.next)
		}
	}
	if _, err := NewLook("10:12:10", 5); err == nil {
		t.Error("NewLook accepts an age from before the snapshot")
	}
}

// An id of 32 bits is that near the next one, also where the counter has just begun anew.
//
// Promises: L, O
func TestEndedAcrossTheWraparound(t *testing.T) {
	const epoch = 1 << 32
	for _, c := range []struct {
		next    uint64
		running Set
		id      uint32
		want    bool
	}{
		{epoch + 5, nil, 0xfffffffe, true},
		{epoch + 5, nil, 3, true},
		{epoch + 5, nil, 7, false},
		{epoch + 5, Of(3), 3, false},
		{epoch + 5, Of(epoch + 3), 3, false},
		{epoch + 5, Of(epoch - 2), 0xfffffffe, false},
		{epoch - 2, nil, 1, false},
		{epoch - 2, nil, 0xfffffff0, true},
	} {
		if c.running != nil && c.running.Contains(3) && c.next > epoch { // of the epoch before
			c.want = true
		}
		if got := (&Look{Next: c.next, Running: c.running}).Ended(c.id); got != c.want {
			t.Errorf("next %x, running %v: %x has ended: %v", c.next, c.running, c.id, got)
		}
	}
	old, late := &Look{Next: 10, Running: Of(5, 9)}, &Look{Next: 9}
	if late.EndedAll(old) || !(&Look{Next: 10}).EndedAll(old) || (&Look{Next: 20, Running: Of(9)}).EndedAll(old) {
		t.Error("a look has seen the end of what it cannot know")
	}
}
