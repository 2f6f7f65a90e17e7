package kafkabroker

import (
	"context"
	"sync"
)

// lookup asks a question once for everybody who wants the answer now. Whoever
// comes while it is being asked waits for that answer, until its own context
// ends: on a broker that does not answer, a hundred callers wait together and
// not one after the other. The zero value is ready.
type lookup[T any] struct {
	mu  sync.Mutex
	run *answer[T] // nil: nobody is asking
}

type answer[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// ask returns the answer of fn, which must end by itself.
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
