package consumer

import (
	"sync"
	"time"
)

// trouble is an outage of a part that many goroutines use: it is logged once,
// and tries become rarer while it lasts.
type trouble struct {
	mu    sync.Mutex
	since time.Time // zero: no outage
}

// failed records a failure. It returns whether it is the first one, and how long
// the outage has lasted.
func (t *trouble) failed(now time.Time) (first bool, lasted time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if first = t.since.IsZero(); first {
		t.since = now
	}
	return first, now.Sub(t.since)
}

// lasts reports whether the outage continues.
func (t *trouble) lasts() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.since.IsZero()
}

// worked records a success and reports whether it ends an outage.
func (t *trouble) worked() (over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	over = !t.since.IsZero()
	t.since = time.Time{}
	return over
}
