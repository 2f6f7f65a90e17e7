package rabbitbroker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/broker"
)

// line is one connection at a time. A call uses one line only.
type line struct {
	live  atomic.Pointer[session]
	calls int // calls that use it; guarded by the sink's mu
}

// Close closes the connections and ends every call. Unconfirmed messages are unknown.
func (s *Sink) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var wg sync.WaitGroup
	for i := range s.lines {
		if live := s.lines[i].live.Load(); live != nil {
			wg.Go(func() { live.close(time.Second) })
		}
	}
	wg.Wait()
}

// enter returns the line with the fewest calls.
func (s *Sink) enter() *line {
	s.mu.Lock()
	defer s.mu.Unlock()
	best := &s.lines[0]
	for i := range s.lines {
		if l := &s.lines[i]; l.calls < best.calls {
			best = l
		}
	}
	best.calls++
	return best
}

// learnAll learns from the ends of sessions, so that no other session ends for the same
// reason.
func (s *Sink) learnAll() {
	for i := range s.lines {
		if live := s.lines[i].live.Load(); live != nil && live.over() {
			s.learnOf(live)
		}
	}
}

func (s *Sink) learnOf(ended *session) {
	if !ended.learned.Swap(true) {
		s.learn(ended.because())
	}
}

func (s *Sink) leave(l *line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.calls--
}

// session returns the line's live session, or opens one. While the broker
// is unreachable it fails at once until the next try is due.
func (s *Sink) session(ctx context.Context, l *line) (*session, error) {
	if live := l.live.Load(); live != nil && !live.over() {
		return live, nil
	}
	select {
	case s.one <- struct{}{}:
		defer func() { <-s.one }()
	case <-ctx.Done():
		return nil, broker.Outage(fmt.Errorf("not connected: %w", ctx.Err()), "", "")
	}
	live := l.live.Load()
	if live != nil && !live.over() {
		return live, nil
	}
	if err := s.mayOpen(); err != nil {
		return nil, err
	}
	if live != nil {
		_ = live.wire.Close() // a line never has two sending connections
		s.learnOf(live)
	}
	next, err := openSession(ctx, &s.dialer, s.opts.Exchange)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil { // the end of the caller's context is no failure of the broker
			s.failed, s.again = err, time.Now().Add(pause(s.tries))
			s.tries++
		}
		return nil, err
	}
	if s.closed {
		_ = next.wire.Close()
		return nil, broker.Outage(errClosed, "", "")
	}
	s.failed, s.tries = nil, 0
	next.anywhere = &s.confirmed
	l.live.Store(next)
	return next, nil
}

// settled waits until the broker has answered earlier sends of the message.
func (s *Sink) settled(ctx context.Context, at place) error {
	for i := range s.lines {
		live := s.lines[i].live.Load()
		if live == nil {
			continue
		}
		if err := live.settled(ctx, at, s.opts.Timeout); err != nil {
			return err
		}
	}
	return nil
}

// mayOpen returns an error if a new connection must not be tried yet.
func (s *Sink) mayOpen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return broker.Outage(errClosed, "", "")
	}
	if s.failed != nil && time.Now().Before(s.again) {
		return s.failed
	}
	return nil
}

// pause returns the pause after a number of earlier failures: 100 ms, doubled
// up to 5 s, less a random part, so that many clients do not reconnect at once.
func pause(failures int) time.Duration {
	most := min(100*time.Millisecond<<min(failures, 6), 5*time.Second)
	return most/2 + rand.N(most/2)
}

// learn learns from the reason that ended a session: a
// size limit, or a missing permission.
func (s *Sink) learn(why error) {
	if n := learnedLimit(why); n > 0 && n < s.limit() {
		s.most.Store(int64(n))
	}
	s.refusals.learn(why, time.Now())
}
