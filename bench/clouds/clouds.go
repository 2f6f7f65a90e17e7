// Package clouds measures the limit of the cloud services' own clients: loops that batch
// as the sinks do.
package clouds

import (
	"context"
	"errors"
	"sync"
)

// Record returns record i, with the fields and sizes of the relay's.
type Record func(i int) (id, key string, payload []byte)

// Client is a loop of a vendor's client. It is safe for concurrent use.
type Client struct {
	requests int // under way at once, as many as the sink has
	batch    int // records of a request
	send     func(ctx context.Context, from, to int) error
	close    func()
}

// The attributes that the relay sends beside id, key and payload.
const (
	kind = "bench.event"
	when = "2026-01-01T00:00:00.000000Z"
)

// Produce sends n records and returns when all are acknowledged.
func (c *Client) Produce(ctx context.Context, n int) error {
	var (
		wg   sync.WaitGroup
		errs = make([]error, c.requests)
	)
	for w := range c.requests {
		wg.Go(func() {
			for from := w * c.batch; from < n && errs[w] == nil; from += c.requests * c.batch {
				errs[w] = c.send(ctx, from, min(from+c.batch, n))
			}
		})
	}
	wg.Wait()
	c.close()
	return errors.Join(errs...)
}

// Publisher returns a function that sends record i at once without waiting, and one that
// waits for all records and closes the client.
func (c *Client) Publisher(ctx context.Context) (publish func(i int), end func()) {
	work := make(chan int, 1<<16)
	var wg sync.WaitGroup
	for range c.requests {
		wg.Go(func() {
			for i := range work {
				_ = c.send(ctx, i, i+1) // the reader misses a failed write
			}
		})
	}
	return func(i int) { work <- i }, func() { close(work); wg.Wait(); c.close() }
}
