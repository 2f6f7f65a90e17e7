package budget

import "testing"

func TestBudget(t *testing.T) {
	b := Budget{Bytes: 8 << 20}
	for _, c := range []struct{ limit, held, seen, want int }{
		{1000, 0, 1 << 20, 8},          // the first guess
		{1000, 6 << 20, 1 << 20, 2},    // what is left
		{1000, 8 << 20, 0, 0},          // full
		{1000, 9 << 20, 0, 0},          // more than full
		{0, 0, 0, 0},                   // nothing is asked
		{1000, 0, 16 << 20, 1000},      // small ones lately: the surprise
		{1000, 0, 16 << 20, 1},         // larger than all: one by one
		{1000, 8<<20 - 1, 16 << 20, 1}, // the last one that fits in part
		{3, 0, 100, 1},
	} {
		if c.want == 1000 {
			for range 30 {
				b.Seen(100)
			}
		}
		if got := b.Ask(c.limit, c.held); got != c.want {
			t.Errorf("Ask(%d, %d) = %d, want %d", c.limit, c.held, got, c.want)
		}
		if c.seen > 0 {
			b.Seen(c.seen)
		}
	}
}
