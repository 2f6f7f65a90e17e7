package sim

import (
	"time"

	"github.com/postrider/postrider/relay/internal/port"
)

// event is something that happens later: a function, or what a node is told.
type event struct {
	fn   func()
	n    *node
	boot string
	ev   port.Event
}

// slot is a place in the queue: when, in which order of asking, and where the
// event is.
type slot struct {
	at  time.Duration
	seq uint64
	idx int32
}

func (s slot) before(o slot) bool { return s.at < o.at || s.at == o.at && s.seq < o.seq }

// queue is a heap of slots over a list of events that is used again.
type queue struct {
	heap   []slot
	events []event
	free   []int32
	seq    uint64
}

func (q *queue) push(at time.Duration, e event) {
	var idx int32
	if n := len(q.free); n > 0 {
		idx, q.free = q.free[n-1], q.free[:n-1]
		q.events[idx] = e
	} else {
		idx = int32(len(q.events))
		q.events = append(q.events, e)
	}
	q.seq++
	s := slot{at, q.seq, idx}
	i := len(q.heap)
	q.heap = append(q.heap, s)
	for i > 0 {
		up := (i - 1) / 2
		if !s.before(q.heap[up]) {
			break
		}
		q.heap[i], i = q.heap[up], up
	}
	q.heap[i] = s
}

func (q *queue) pop() (time.Duration, event) {
	top := q.heap[0]
	last := len(q.heap) - 1
	s := q.heap[last]
	q.heap = q.heap[:last]
	if last > 0 {
		i := 0
		for {
			down := 2*i + 1
			if down >= last {
				break
			}
			if down+1 < last && q.heap[down+1].before(q.heap[down]) {
				down++
			}
			if !q.heap[down].before(s) {
				break
			}
			q.heap[i], i = q.heap[down], down
		}
		q.heap[i] = s
	}
	e := q.events[top.idx]
	q.events[top.idx] = event{}
	q.free = append(q.free, top.idx)
	return top.at, e
}

func (q *queue) clear() { q.heap = q.heap[:0] }
