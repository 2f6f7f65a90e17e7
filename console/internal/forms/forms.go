// Package forms remembers the forms that were sent to a console.
package forms

import (
	"sync"
	"time"
)

// Sent are the forms of acts that this process was sent, so that a second click, or a page that is
// loaded again, does not act again. The zero value has none. It is safe for concurrent use.
type Sent struct {
	mu  sync.Mutex
	all map[string]time.Time
}

// How long a form is remembered, how many are, and how long the mark of one may be.
const (
	keptFor = 12 * time.Hour
	most    = 10_000
	longest = 64
)

// Take reports whether a form is sent for the first time. A form without a mark is not one that a
// page has shown, and always is.
func (s *Sent) Take(once string, now time.Time) bool {
	if once == "" {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, known := s.all[once]; known && now.Sub(at) < keptFor || len(once) > longest {
		return false
	}
	if s.all == nil {
		s.all = map[string]time.Time{}
	}
	if len(s.all) >= most {
		s.tidy(now)
	}
	s.all[once] = now
	return true
}

// tidy forgets what is old, and at least the oldest.
func (s *Sent) tidy(now time.Time) {
	oldest, since := "", now
	for once, at := range s.all {
		if now.Sub(at) >= keptFor {
			delete(s.all, once)
		} else if at.Before(since) || oldest == "" {
			oldest, since = once, at
		}
	}
	if len(s.all) >= most {
		delete(s.all, oldest)
	}
}

// GiveBack lets a form be sent again that has done nothing.
func (s *Sent) GiveBack(once string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, once)
}
