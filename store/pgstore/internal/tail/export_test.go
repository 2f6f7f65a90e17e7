package tail

import "time"

// Limit changes the limits of a bell: the WAL that its slot may hold back, the rate at which
// it is busy, and the pause before it tries again. 0 leaves one as it is.
func (b *Bell) Limit(hold int64, busy float64, pause time.Duration) {
	if hold > 0 {
		b.limits.hold = hold
	}
	if busy > 0 {
		b.limits.busy = busy
	}
	if pause > 0 {
		b.limits.soon, b.limits.again = pause, pause
	}
}
