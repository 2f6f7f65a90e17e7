// Package awaited remembers the topics that a sink has seen missing, until they have a
// subscription. Services that deliver by subscriptions accept a message of a topic
// without one, and drop it: a topic is made first and its subscription afterwards.
package awaited

import (
	"context"
	"sync"
	"sync/atomic"
)

// most bounds how many topics are remembered: their names come with messages.
const most = 10_000

// Topics is the memory of a sink. The zero value remembers none. It is safe for
// concurrent use.
type Topics struct {
	held atomic.Int64 // how many marks there are, for callers that need no lock

	mu    sync.Mutex
	seen  uint64
	marks map[string]*mark
}

// mark is the last time that a topic was seen missing.
type mark struct {
	at    uint64    // orders marks by age
	asked *question // nil: none is under way
}

// question is one request for the subscriptions of a topic. All callers that need its
// answer share it.
type question struct {
	done chan struct{} // closed when the fields below are set
	err  error
	cut  bool // the context of the caller that asked ended: the answer is of no use to others
}

// Missing notes that a topic does not exist. Beyond 10,000 topics the
// topic whose mark is the oldest is forgotten.
func (t *Topics) Missing(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.marks == nil {
		t.marks = make(map[string]*mark)
	}
	if _, known := t.marks[name]; !known && len(t.marks) >= most {
		oldest, at := "", t.seen
		for other, m := range t.marks {
			if m.at <= at {
				oldest, at = other, m.at
			}
		}
		delete(t.marks, oldest)
	}
	t.seen++
	t.marks[name] = &mark{at: t.seen} // a question that is under way is older, and says nothing about this
	t.held.Store(int64(len(t.marks)))
}

// Ready returns nil if a message may be published to a topic: the topic was not missing,
// or ask has returned nil since. Otherwise it returns what ask returned, or the error of
// ctx. Callers that come while ask runs share its answer.
func (t *Topics) Ready(ctx context.Context, name string, ask func(context.Context) error) error {
	for t.held.Load() > 0 {
		m, q, mine := t.join(name)
		switch {
		case m == nil:
			return nil
		case mine:
			q.err = ask(ctx)
			q.cut = q.err != nil && ctx.Err() != nil
			t.end(name, m)
		default:
			select {
			case <-q.done:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if q.err != nil && (mine || !q.cut) {
			return q.err
		}
	}
	return nil
}

// join returns the mark of a topic and the question about it, which is mine to ask if
// there was none. The mark is nil if the topic is not awaited.
func (t *Topics) join(name string) (m *mark, q *question, mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m = t.marks[name]
	if m == nil {
		return nil, nil, false
	}
	if mine = m.asked == nil; mine {
		m.asked = &question{done: make(chan struct{})}
	}
	return m, m.asked, mine
}

// end takes note of the answer to the question about m.
func (t *Topics) end(name string, m *mark) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := m.asked
	m.asked = nil
	if q.err == nil && t.marks[name] == m { // otherwise it was seen missing again meanwhile
		delete(t.marks, name)
		t.held.Store(int64(len(t.marks)))
	}
	close(q.done)
}
