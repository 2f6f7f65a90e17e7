// Package seek finds a row of a log by the time of its writing, without an index of
// times: numbers and times rise together, nearly.
package seek

import (
	"context"
	"time"
)

// Row is a row that was met.
type Row struct {
	Seq int64
	At  time.Time
}

// Probe returns the first row whose number is seq or above; ok is false where there is
// none.
type Probe func(ctx context.Context, seq int64) (row Row, ok bool, err error)

// First returns a number at which rows of the time at, or later, begin: it halves the
// numbers from low to high, high excluded, with one probe each. Where times do not
// rise with the numbers it is one such place of several.
func First(ctx context.Context, low, high int64, at time.Time, probe Probe) (int64, error) {
	for low < high {
		middle := low + (high-low)/2
		row, ok, err := probe(ctx, middle)
		if err != nil {
			return 0, err
		}
		if ok && row.At.Before(at) {
			low = row.Seq + 1
		} else {
			high = middle
		}
	}
	return low, nil
}

// reaches are how many numbers to look at on either side of First, one after the other.
func reaches() []int64 { return []int64{2_000, 20_000, 100_000} }
