package brake

import (
	"fmt"
	"testing"
	"time"
)

// Destinations beyond the bound are held, do not release the others, and have their own
// counts again when there is room.
func TestDestinationsBeyondTheBoundAreHeld(t *testing.T) {
	var r Rows
	held := map[string]bool{}
	reject := func(at time.Duration, name, code string) bool {
		n, _ := r.Rejected(at, name, code, 20, func(name string) bool { return held[name] })
		held[name] = held[name] || n > 20
		return held[name]
	}
	for i := range Most {
		for range 20 + i%2 {
			reject(0, fmt.Sprint("t", i), "a")
		}
	}
	died := map[string]int{}
	for i := range 100 * Most {
		if name := fmt.Sprint("u", i%Most); !reject(time.Minute, name, fmt.Sprint(i)) {
			died[name]++
		}
	}
	for name, n := range died {
		if n > 20 {
			t.Errorf("%d of %s died", n, name)
		}
	}
	if r.Len() != Most {
		t.Errorf("%d are counted singly", r.Len())
	}
	for i := range shared {
		if n, _ := r.Rejected(time.Minute+stale, fmt.Sprint("w", i), "a", 20, func(string) bool { return true }); n != 21 {
			t.Fatalf("one that is held counts %d", n)
		}
	}
	if n, fresh := r.Rejected(time.Minute, "t1", "b", 20, func(string) bool { return true }); n != 1 || !fresh {
		t.Errorf("another code counts %d, %v", n, fresh)
	}
	if reject(2*stale, "v", "a") || r.Len() != Most/2+1 {
		t.Errorf("old counts make no room: %d", r.Len())
	}
}
