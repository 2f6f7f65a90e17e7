package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/postrider/postrider/broker"
)

// settler passes verdicts to the source, many at a time: verdicts that arrive during
// one call go into the next. It keeps their order.
type settler struct {
	source broker.Source
	opts   Options

	mu       sync.Mutex
	verdicts []broker.Verdict
	done     []func()
	wake     chan struct{} // holds a token when there are verdicts
	closing  chan struct{} // closed: end when no verdict is left
	ended    chan struct{}
}

func newSettler(source broker.Source, opts Options) *settler {
	return &settler{source: source, opts: opts, wake: make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{})}
}

// add queues verdicts, which the settler owns from then on; done is called once the source has taken them.
func (s *settler) add(verdicts []broker.Verdict, done func()) {
	s.mu.Lock()
	if len(s.verdicts) == 0 {
		s.verdicts = verdicts
	} else {
		s.verdicts = append(s.verdicts, verdicts...)
	}
	s.done = append(s.done, done)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *settler) run(ctx context.Context) {
	defer close(s.ended)
	for {
		s.mu.Lock()
		verdicts, done := s.verdicts, s.done
		s.verdicts, s.done = nil, nil
		s.mu.Unlock()
		if len(verdicts) > 0 {
			if !s.tell(ctx, verdicts) {
				return
			}
			for _, f := range done {
				f()
			}
			continue
		}
		select {
		case <-s.wake:
		case <-s.closing:
			if s.empty() {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (s *settler) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.verdicts) == 0
}

// tell repeats until the source has taken the verdicts or ctx ends. Messages whose
// verdicts it has not taken are delivered again, and the inbox skips them.
func (s *settler) tell(ctx context.Context, verdicts []broker.Verdict) bool {
	delay := 50 * time.Millisecond
	for n := 1; ; n++ {
		err := s.source.Settle(ctx, verdicts)
		if err == nil {
			if n > 1 {
				s.opts.Logger.InfoContext(ctx, "settling resumed", "consumer", s.opts.Name, "source", s.source.Info().Name)
			}
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		s.opts.Logger.Log(ctx, onceError(n), "settling failed", "consumer", s.opts.Name, "source", s.source.Info().Name,
			"messages", len(verdicts), "in", delay, "error", err)
		pause(ctx, delay)
		delay = min(2*delay, 5*time.Second)
	}
}

// finish passes the remaining verdicts to the source, for at most DrainTimeout.
func (s *settler) finish(stop context.CancelFunc) {
	close(s.closing)
	timer := time.NewTimer(s.opts.DrainTimeout)
	defer timer.Stop()
	select {
	case <-s.ended:
	case <-timer.C:
		stop()
	}
}
