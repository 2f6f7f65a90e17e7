package pubsubbroker

import (
	"context"
	"io"
	"sync"
	"time"
)

// closer is a client of the service.
type closer interface {
	comparable
	io.Closer
}

// line is a client that is made when it is needed first, and made anew after a request
// that got no answer: gRPC would keep using a connection that is half-open. So it is
// after a request whose credentials were rejected.
type line[C closer] struct {
	dial func(context.Context) (C, error) // nil: the client is the caller's

	mu     sync.Mutex
	client C
	made   bool
}

// get returns the client. It is made without the end of ctx, which it outlives.
func (l *line[C]) get(ctx context.Context) (C, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.made {
		return l.client, nil
	}
	c, err := l.dial(context.WithoutCancel(ctx))
	if err == nil {
		l.client, l.made = c, true
	}
	return c, err
}

// doubt lets the next request connect anew if c is still in use. Requests that are
// under way on c have some time to end.
func (l *line[C]) doubt(c C, grace time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dial != nil && l.made && l.client == c {
		l.made = false
		time.AfterFunc(grace, func() { _ = c.Close() }) // nobody waits for it
	}
}

// end closes the client.
func (l *line[C]) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dial != nil && l.made {
		l.made = false
		_ = l.client.Close() // nobody waits for it
	}
}
