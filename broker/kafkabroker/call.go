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
	left   atomic.Int32     // unresolved messages, plus one for enqueue itself
	done   chan struct{}    // closed when left is 0

	mu   sync.Mutex
	errs []error
}

func newCall(msgs []postrider.Message, routes []envelope.Route) *call {
	c := &call{msgs: msgs, routes: routes, done: make(chan struct{})}
	c.left.Store(int32(len(msgs)) + 1)
	return c
}

// route returns the route of message i; nil means its own topic and key, plain.
func (c *call) route(i int32) *envelope.Route {
	if c.routes != nil {
		return &c.routes[i]
	}
	return nil
}

// place returns the topic and the key that message i is sent with.
func (c *call) place(i int) (topic, key string) {
	if c.routes != nil {
		return c.routes[i].Topic, c.routes[i].Key
	}
	return c.msgs[i].Topic, c.msgs[i].Key
}

// fail records the error of message i without resolving the message.
func (c *call) fail(i int32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.errs == nil {
		c.errs = make([]error, len(c.msgs))
	}
	c.errs[i] = err
}

// resolved counts n messages as resolved.
func (c *call) resolved(n int) {
	if n > 0 && c.left.Add(int32(-n)) == 0 {
		close(c.done)
	}
}

// result returns the errors for Deliver. The caller waits until done is closed, or
// until no partition can touch the call any more.
func (c *call) result() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.errs
}

// segment holds a call's messages for one partition. The partition's mutex guards all
// of its fields.
type segment struct {
	call   *call
	p      *partition
	idx    []int32 // messages in order; -1: resolved out of turn
	next   int     // index of the first message that is in no batch
	failed map[string]struct{}
	dead   bool // the call has returned: its messages must not be touched any more
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

// resolve resolves the messages in [from, to) with err; nil acknowledges them.
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
