package rabbitbroker

import (
	"context"
	"net"
	"sync"
	"time"
)

// conn gathers the client's writes and sends them in a goroutine of its own. The
// client makes one system call per message. While the server accepts no
// bytes, it blocks there with its locks held and ignores every context.
// Here small messages share a call and a write never blocks: senders
// wait for room first, with a context.
type conn struct {
	net.Conn

	mu     sync.Mutex
	change sync.Cond
	buf    []byte
	err    error // the connection has ended
}

// maxGathered is the number of gathered bytes above which there is no room.
const maxGathered = 256 << 10

func newConn(raw net.Conn) *conn {
	c := &conn{Conn: raw}
	c.change.L = &c.mu
	go c.send()
	return c
}

// Write implements net.Conn. It returns the error of an earlier write.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.buf = append(c.buf, p...)
	c.change.Broadcast()
	return len(p), nil
}

// roomy reports whether another message may be written.
func (c *conn) roomy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.buf) < maxGathered || c.err != nil
}

// waitRoom returns when there is room, when ctx ends, or after most: the caller then
// checks whether it still has to write.
func (c *conn) waitRoom(ctx context.Context, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.change.Broadcast()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.buf) >= maxGathered && c.err == nil && ctx.Err() == nil {
		c.change.Wait()
	}
}

func (c *conn) send() {
	var out []byte
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for len(c.buf) == 0 && c.err == nil {
			c.change.Wait()
		}
		if c.err != nil {
			return
		}
		out, c.buf = c.buf, out[:0]
		c.change.Broadcast()
		c.mu.Unlock()
		_, err := c.Conn.Write(out)
		c.mu.Lock()
		if cap(out) > 4*maxGathered { // do not keep the buffer of one huge message
			out = nil
		}
		if err != nil {
			c.end(err)
			_ = c.Conn.Close() // the client's reader notices
		}
	}
}

// end records err and wakes all waiting calls. The caller holds mu.
func (c *conn) end(err error) {
	if c.err == nil {
		c.err = err
		c.change.Broadcast()
	}
}

// Close implements net.Conn. Gathered bytes are dropped.
func (c *conn) Close() error {
	c.mu.Lock()
	c.end(net.ErrClosed)
	c.mu.Unlock()
	return c.Conn.Close()
}
