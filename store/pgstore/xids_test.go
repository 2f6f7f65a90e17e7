package pgstore

import (
	"math/rand/v2"
	"testing"
)

func randomSet(rnd *rand.Rand) xidSet {
	var r []xidRange
	for range rnd.IntN(6) {
		lo := uint64(rnd.IntN(30))
		r = append(r, xidRange{lo, lo + uint64(rnd.IntN(6))})
	}
	return normal(r)
}

func TestSetsAgainstMembership(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		a, b := randomSet(rnd), randomSet(rnd)
		minus, union, both := a.minus(b), a.union(b), false
		for x := range uint64(40) {
			if minus.contains(x) != (a.contains(x) && !b.contains(x)) || union.contains(x) != (a.contains(x) || b.contains(x)) {
				t.Fatalf("%v and %v at %d: minus %v, union %v", a, b, x, minus, union)
			}
			both = both || a.contains(x) && b.contains(x)
		}
		if overlaps(a, b) != both {
			t.Fatalf("overlaps(%v, %v) is %v", a, b, !both)
		}
		back, err := parseMultirange(a.String())
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
		// The 32-bit counter has gone round; age is signed.
		{"4294967290:4294967300:4294967295", 4, "{[4294967295,4294967296),[4294967300,4294967303)}", 4294967303},
		{"8589934000:8589934000:", -592 - 3 + 5, "{[8589934000,8589934005)}", 8589934005},
	} {
		k, err := newLook(c.snapshot, c.age)
		if err != nil || k.running.String() != c.running || k.next != c.next {
			t.Errorf("%s, age %d: %v next %d, %v; want %s next %d", c.snapshot, c.age, k.running, k.next, err, c.running, c.next)
		}
	}
	if _, err := newLook("10:12:10", 5); err == nil {
		t.Error("an age from before the snapshot was accepted")
	}
}

func FuzzPosition(f *testing.F) {
	c := cursor{pos: 5, low: 2, next: 9, inflight: xidSet{{3, 4}}, draining: xidSet{{1, 2}}, drainSeq: 3}
	f.Add([]byte(c.encode()))
	f.Add([]byte{positionVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodePosition(b)
		if err != nil {
			return
		}
		again, err := decodePosition(c.encode())
		if err != nil || string(again.encode()) != string(c.encode()) {
			t.Errorf("%x does not survive: %v", b, err)
		}
	})
}
