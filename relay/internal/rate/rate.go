// Package rate computes when the next call may begin under a limit of messages per second.
// Time is passed in as a value.
package rate

import (
	"time"

	"github.com/postrider/postrider/store"
)

// Limit is the limit of one instance over all of its lanes. A call may exceed it: the
// next one then begins correspondingly later. Time without calls does not
// accumulate. The zero value limits nothing.
type Limit struct {
	PerSecond float64       // 0: no limit
	At        time.Duration // when the next call may begin
	By        store.Lane    // lane of the last call: the lane after it has the next call
}

// Spend counts a call with n messages of a lane.
func (l *Limit) Spend(now time.Duration, by store.Lane, n int) {
	if l.PerSecond > 0 {
		l.By, l.At = by, max(l.At, now)+time.Duration(float64(n)/l.PerSecond*float64(time.Second))
	}
}

// Page bounds the messages of one call to those of a tenth of a second.
func (l *Limit) Page(page int) int {
	if tenth := l.PerSecond / 10; tenth > 0 && float64(page) > tenth {
		return max(int(tenth), 1)
	}
	return page
}
