package httpbroker

import (
	"net/http"
	"time"
)

// Judge returns a judge of answers to messages, at times of its own.
func Judge() func(id string, status int, at time.Duration) error {
	b, start := &breaker{}, time.Now()
	b.init(&prepared{})
	return func(id string, status int, at time.Duration) error {
		now := start.Add(at)
		return b.judge(&job{name: id, began: now}, judgeStatus("e", status, http.Header{}, now), now, "")
	}
}

// Has reports whether a request of that webhook-id waits for its answer.
func (r *Receiver) Has(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id] != nil
}

// Waiting is the number of requests that wait for their answer.
func (r *Receiver) Waiting() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.byID {
		n += e.waiters
	}
	return n
}
