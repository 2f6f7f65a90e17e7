// Package forms remembers the forms that were sent to a console.
package forms

import (
	"context"
	"sync"
	"time"

	"github.com/postrider/postrider/store/ops"
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

// Act is that of the entries by which a journal remembers forms. Their key is the form's mark.
const Act = "replay form"

// First reports whether a form is sent to the processes of a console for the first time. It writes
// the form into the journal and then looks for other entries of it. Of two processes that do so at
// once at least one finds the other's entry, and what finds one is not first: no form is first twice,
// and one that comes at the same moment to both may be first in neither. An office that keeps no
// journal, or in which nothing can be written, does not know: each form is first.
func First(ctx context.Context, office *ops.Office, once, actor, reason string) (bool, error) {
	if once == "" || !office.Has(ops.CanRecord) || !office.Has(ops.CanJournal) {
		return true, nil
	}
	if _, err := office.Records.Record(ctx, ops.JournalEntry{Actor: actor, Act: Act, Key: once, Reason: reason}); err != nil {
		return false, err
	}
	same, err := office.Journal.Entries(ctx, ops.JournalQuery{Act: Act, Key: once, Limit: 2})
	return len(same) == 1, err
}
