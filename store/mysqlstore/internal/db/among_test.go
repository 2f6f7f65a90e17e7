package db

import (
	"slices"
	"testing"
)

func TestAmong(t *testing.T) {
	upTo := func(first, last int64) (s []int64) {
		for n := first; n <= last; n++ {
			s = append(s, n)
		}
		return s
	}
	for _, c := range []struct {
		seqs []int64
		want string
	}{
		{upTo(1, 3), "seq IN (1,2,3)"},
		{upTo(1, 8), "seq IN (1,2,3,4,5,6,7,8)"},
		{upTo(1, 9), "(seq BETWEEN 1 AND 9)"},
		{slices.Concat(upTo(1, 9), upTo(20, 31)), "(seq BETWEEN 1 AND 9 OR seq BETWEEN 20 AND 31)"},
		{slices.Concat([]int64{2, 4}, upTo(20, 31), []int64{40}), "((seq BETWEEN 20 AND 31) OR seq IN (2,4,40))"},
	} {
		if got := Among(c.seqs); got != c.want {
			t.Errorf("Among(%v) = %s, want %s", c.seqs, got, c.want)
		}
	}
}
