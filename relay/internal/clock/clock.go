// Package clock follows how far the database's clock is ahead of ours.
package clock

import "time"

// slack: a lesser difference does not count.
const slack = 100 * time.Millisecond

// Ahead is the database's clock less ours, once it was told.
type Ahead struct {
	by   time.Duration
	told bool
}

// Told takes in what the database's clock said between our question and now, and returns by
// how much it has moved against ours since it was told last. What is not certain is no
// difference.
func (a *Ahead) Told(theirs time.Time, asked, now time.Duration) (moved time.Duration) {
	least, most := time.Duration(theirs.UnixNano())-now, time.Duration(theirs.UnixNano())-asked
	by := min(max(a.by, least), most)
	if moved = by - a.by; a.told && moved.Abs() < slack {
		return 0
	}
	if !a.told {
		moved = 0
	}
	a.by, a.told = by, true
	return moved
}

// Forget makes the next difference the first one.
func (a *Ahead) Forget() { a.told = false }
