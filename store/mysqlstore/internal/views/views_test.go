package views

import "testing"

// A lane is known to its owner as long as its own settlements alone have moved it.
func TestOnlyOwnSettlementsKeepALaneKnown(t *testing.T) {
	s := New(nil)
	for _, epoch := range []int64{5, 6, 7, 9} { // another instance had the lane under epoch 8
		s.Settled("a", 1, epoch)
	}
	for _, c := range []struct {
		boot          string
		known, epoch  int64
		settled, want bool
	}{
		{"a", 8, 8, false, true},   // nothing has moved it
		{"a", 9, 10, true, true},   // a settlement
		{"a", 10, 11, true, true},  // a settlement without an answer
		{"a", 9, 11, true, true},   // both
		{"a", 9, 11, false, false}, // a settlement, and it was taken
		{"a", 7, 10, true, false},  // it was taken in between
		{"a", 9, 12, true, false},  // more than this store has settled
		{"b", 9, 11, true, false},  // another instance
		{"a", 11, 10, true, false}, // an epoch that never was
	} {
		if got := s.Moved(c.boot, 1, c.known, c.epoch, c.settled); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if s.Forget(); s.Moved("a", 1, 9, 11, true) {
		t.Error("the lane is known in another database")
	}
}
