package kafkabroker

import (
	"sync"
	"sync/atomic"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// call is one Deliver. Its messages are shared with the partitions until each
// has been resolved.
type call struct {
	msgs   []postrider.Message
	routes []envelope.Route // of each message; nil: its topic and its key, plain
	left   atomic.Int32     // messages that are not resolved, and one for enqueue itself
	done   chan struct{}    // closed when left is 0

	mu   sync.Mutex
	errs []error
}

func newCall(msgs []postrider.Message, routes []envelope.Route) *call {
	c := &call{msgs: msgs, routes: routes, done: make(chan struct{})}
	c.left.Store(int32(len(msgs)) + 1)
	return c
}

// route is that of message i; nil: its topic and its key, plain.
func (c *call) route(i int32) *envelope.Route {
	if c.routes != nil {
		return &c.routes[i]
	}
	return nil
}

// topic and key are where message i goes.
func (c *call) place(i int) (topic, key string) {
	if c.routes != nil {
		return c.routes[i].Topic, c.routes[i].Key
	}
	return c.msgs[i].Topic, c.msgs[i].Key
}

// fail notes the error of message i. It does not resolve it.
func (c *call) fail(i int32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.errs == nil {
		c.errs = make([]error, len(c.msgs))
	}
	c.errs[i] = err
}

// resolved counts n messages whose fate is known.
func (c *call) resolved(n int) {
	if n > 0 && c.left.Add(int32(-n)) == 0 {
		close(c.done)
	}
}

// result is what Deliver returns. Call it when done is closed or when nothing
// can touch the call any more.
func (c *call) result() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.errs
}

// segment is what a call has for one partition. Everything in it is guarded by
// the partition's mutex.
type segment struct {
	call   *call
	p      *partition
	idx    []int32 // messages in order; -1: resolved out of turn
	next   int     // the first one that is in no batch
	failed map[string]struct{}
	dead   bool // the call has returned: its messages must not be touched
}

// reject resolves the k-th message with err and bars the rest of its key.
func (s *segment) reject(k int, err error) {
	i := s.idx[k]
	s.idx[k] = -1
	if key := s.call.msgs[i].Key; key != "" {
		if s.failed == nil {
			s.failed = make(map[string]struct{})
		}
		s.failed[key] = struct{}{}
	}
	s.call.fail(i, err)
	s.call.resolved(1)
}

// resolve ends the messages from to to, with err or acknowledged.
func (s *segment) resolve(from, to int, err error) {
	if s.dead {
		return
	}
	n := 0
	for k := from; k < to; k++ {
		if s.idx[k] < 0 {
			continue
		}
		if err != nil {
			s.call.fail(s.idx[k], err)
		}
		n++
	}
	s.call.resolved(n)
}
