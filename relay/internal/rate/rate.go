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

// Share sets the part of a pipe's rate that an instance with held of all lanes may use: a
// lane has one owner, so together the instances stay below the rate. Without lanes the
// part stays as it is, since 0 would be no limit for the first ones that come. With more
// lanes what is left of the wait for the last call gets shorter.
func (l *Limit) Share(now time.Duration, rate float64, held, all int) {
	if held == 0 || rate == 0 {
		return
	}
	before := l.PerSecond
	l.PerSecond = rate * float64(held) / float64(max(all, held))
	if l.At > now && l.PerSecond > before {
		l.At = now + time.Duration(float64(l.At-now)*before/l.PerSecond)
	}
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

// Window bounds what one of several lanes holds to two pages, or to its share of ten
// seconds: an act of a person, and a parked record that is due, wait until the lane has sent it.
func (l *Limit) Window(window, page, lanes int) int {
	if l.PerSecond == 0 {
		return window
	}
	return int(min(float64(window), max(float64(2*page), 10*l.PerSecond/float64(lanes))))
}
