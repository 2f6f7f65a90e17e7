package kafkabroker

import (
	"context"
	"sync"
)

// lookup makes one request for all callers that need its answer at the same time. A
// caller that arrives during a request waits for its answer, until its own context
// ends: while a broker does not answer, a hundred callers wait together and
// not one after the other. The zero value is ready to use.
type lookup[T any] struct {
	mu  sync.Mutex
	run *answer[T] // nil: no request is under way
}

type answer[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// ask returns the result of fn, which must return without being cancelled.
func (l *lookup[T]) ask(ctx context.Context, fn func() (T, error)) (T, error) {
	l.mu.Lock()
	a := l.run
	if a == nil {
		a = &answer[T]{done: make(chan struct{})}
		l.run = a
		go func() {
			a.value, a.err = fn()
			l.mu.Lock()
			l.run = nil
			l.mu.Unlock()
			close(a.done)
		}()
	}
	l.mu.Unlock()
	select {
	case <-a.done:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
