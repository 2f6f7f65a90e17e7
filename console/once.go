package console

import (
	"errors"
	"sync"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// sentForms remembers the forms of acts that were sent, so that a second click, or a page that is
// loaded again, does not act again.
type sentForms struct {
	mu  sync.Mutex
	all map[string]time.Time
}

// How long a form is remembered, how many are, and how long the mark of one may be.
const (
	sentFor  = 12 * time.Hour
	sentMost = 10_000
	sentLong = 64
)

// take reports whether a form is sent for the first time. A form without a mark is not one that a
// page has shown, and always is.
func (s *sentForms) take(once string, now time.Time) bool {
	if once == "" {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, known := s.all[once]; known && now.Sub(at) < sentFor || len(once) > sentLong {
		return false
	}
	if s.all == nil {
		s.all = map[string]time.Time{}
	}
	if len(s.all) >= sentMost {
		s.tidy(now)
	}
	s.all[once] = now
	return true
}

// tidy forgets what is old, and at least the oldest.
func (s *sentForms) tidy(now time.Time) {
	oldest, since := "", now
	for once, at := range s.all {
		if now.Sub(at) >= sentFor {
			delete(s.all, once)
		} else if at.Before(since) || oldest == "" {
			oldest, since = once, at
		}
	}
	if len(s.all) >= sentMost {
		delete(s.all, oldest)
	}
}

// giveBack lets a form be sent again that has done nothing.
func (s *sentForms) giveBack(once string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, once)
}

// undone reports whether an error says that nothing was done. Of others, such as a database that
// took too long, nobody knows.
func undone(err error) bool {
	var refused *refusal
	return errors.As(err, &refused) || errors.Is(err, ops.ErrInvalidOrder) || errors.Is(err, ops.ErrUnsupported) || errors.Is(err, store.ErrNotFound)
}
