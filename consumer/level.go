package consumer

import (
	"sync"
	"time"
)

// level is how long this process has had everything that its source holds. A message that
// waits in the broker, or was given back, is not missing.
type level struct {
	mu    sync.Mutex
	asked time.Time // when the Receive that runs was called; zero: none runs
	since time.Time // zero: there may be a backlog
	seen  bool      // messages were received
}

// levelAfter is the wait for messages that shows, once some were received, that no more
// are there.
const levelAfter = time.Second

// asks notes a call of Receive.
func (l *level) asks(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = now
}

// answered notes that it has returned n messages of limit.
func (l *level) answered(now time.Time, n, limit int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() && (n < limit || l.seen && now.Sub(l.asked) >= levelAfter) {
		l.since = now
	}
	l.asked, l.seen = time.Time{}, l.seen || n > 0
}

// failed notes that the source is unreachable.
func (l *level) failed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked, l.since, l.seen = time.Time{}, time.Time{}, false
}

// givenBack notes that a message was given back, and not because its handler failed.
func (l *level) givenBack(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.asked.IsZero() {
		l.asked = now
	}
	if !l.since.IsZero() {
		l.since = now
	}
}

// lasts returns how long nothing was left with the source, as far as this process knows.
func (l *level) lasts(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	since := l.since
	if since.IsZero() {
		since = l.asked
	}
	if since.IsZero() {
		return 0
	}
	return now.Sub(since)
}
