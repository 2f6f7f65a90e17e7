package httpbroker

import (
	"net/http"
	"time"
)

// Health is the breaker of one endpoint, on a clock of its own.
type Health struct {
	b      breaker
	start  time.Time
	proved []proof
}

// proof is the breaker's proved value from a time on.
type proof struct{ at, proved time.Time }

// NewHealth returns a breaker without history.
func NewHealth() *Health {
	h := &Health{start: time.Now()}
	h.b.init(&prepared{})
	return h
}

// Answer returns the message's error when a request that began at one time is answered at another.
func (h *Health) Answer(id string, status int, retryAfter string, began, at time.Duration) error {
	header := http.Header{}
	if retryAfter != "" {
		header.Set("Retry-After", retryAfter)
	}
	now := h.start.Add(at)
	j := &job{name: id, began: h.start.Add(began)}
	for _, p := range h.proved {
		if !p.at.After(j.began) {
			j.proved = p.proved
		}
	}
	err := h.b.judge(j, judgeStatus("e", status, header, now), now, "")
	h.proved = append(h.proved, proof{now, h.b.proved})
	return err
}

// Silent reports whether no request has been answered for too long since a request began.
func (h *Health) Silent(began, at time.Duration) bool {
	return h.b.silent(h.start.Add(began), h.start.Add(at))
}

// Closed returns the error of messages that must not be sent at this time.
func (h *Health) Closed(at time.Duration) error { return h.b.closedTo(h.start.Add(at), "") }

// Has reports whether a request with this webhook-id waits for its answer.
func (s *Source) Has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id] != nil
}

// Waiting returns the number of requests that wait for their answer.
func (s *Source) Waiting() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.byID {
		n += e.waiters
	}
	return n
}

// Queued returns the number of messages that the consumer has not received.
func (s *Source) Queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// LateBytes returns the payload bytes that count against MaxLateBytes.
func (s *Sink) LateBytes() int64 { return s.late.Load() }
