package inhand

import (
	"slices"
	"time"

	"github.com/postrider/postrider/broker"
)

// Held is one received message of a [Queue]; it is its delivery's token. Of, Group and
// Delivery are constant.
type Held[T any] struct {
	Of       T      // the receipt, which belongs to the adapter
	Group    string // its messages are handed out one at a time, in the order of their receipt
	Delivery broker.Delivery

	// Others see the message at a time between these two. A poll lasts long, and a
	// service may hide a message at any moment of it.
	Earliest, Latest time.Time

	group *group[T]
	added int // the call of Add that brought it
	size  int // bytes
}

// group is what a queue holds of one group. Its fields are guarded by the queue's mu.
type group[T any] struct {
	name    string
	out     *Held[T]   // with the receiver
	waiting []*Held[T] // behind it, in order
}

// all is what the group has, in order.
func (g *group[T]) all() []*Held[T] {
	if g.out == nil {
		return g.waiting
	}
	return append([]*Held[T]{g.out}, g.waiting...)
}

// live reports whether the message is the receiver's to settle.
func (h *Held[T]) live() bool { return h.group.out == h }

// Add puts the messages of one poll behind those of their groups, in place of stale ones.
func (q *Queue[T]) Add(got ...*Held[T]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.added++
	largest := 0
	for _, h := range got {
		h.added, h.size = q.added, h.Delivery.Message.Size()
		largest = max(largest, h.size)
		q.add(h)
	}
	if largest > 0 {
		q.budget.Seen(largest)
	}
	q.wake()
}

func (q *Queue[T]) add(h *Held[T]) {
	g := q.groups[h.Group]
	if g == nil {
		g = &group[T]{name: h.Group}
	}
	all := slices.Clone(g.all())
	earlier := func(old *Held[T]) bool { return old.added != h.added }
	if at := slices.IndexFunc(all, func(old *Held[T]) bool { return earlier(old) && q.of.Stale(old.Of, h.Of) }); at >= 0 {
		for _, old := range all[at:] {
			if earlier(old) {
				q.remove(old)
			}
		}
	}
	h.group, h.Delivery.Token = g, h
	g.waiting = append(g.waiting, h)
	q.groups[g.name] = g // removing may have dropped it
	q.held, q.bytes = q.held+1, q.bytes+h.size
	if !slices.Contains(q.order, g) {
		q.order = append(q.order, g)
	}
}

// take hands out the first message of each group that has none out. The caller holds mu.
func (q *Queue[T]) take(limit int, now time.Time) (heads []*Held[T]) {
	rest := q.order[:0]
	for _, g := range q.order {
		for len(g.waiting) > 0 && !now.Before(g.waiting[0].Latest) {
			q.lose(g.waiting[0])
		}
		if len(heads) < limit && g.out == nil && len(g.waiting) > 0 {
			g.out, g.waiting = g.waiting[0], g.waiting[1:]
			heads = append(heads, g.out)
		}
		if g.out == nil && len(g.waiting) > 0 {
			rest = append(rest, g)
		}
	}
	clear(q.order[len(rest):])
	q.order = rest
	return heads
}

// lose forgets a message that others may receive, and what is taken with it behind it.
// The caller holds mu.
func (q *Queue[T]) lose(h *Held[T]) {
	all := h.group.all()
	at := slices.Index(all, h)
	if at < 0 {
		return
	}
	for _, behind := range slices.Clone(all[at:]) {
		if behind == h || q.of.Taken(h.Of, behind.Of) {
			q.remove(behind)
		}
	}
}

// remove takes a message out of its group. The caller holds mu.
func (q *Queue[T]) remove(h *Held[T]) {
	g := h.group
	if g.out == h {
		g.out = nil
	} else if at := slices.Index(g.waiting, h); at >= 0 {
		g.waiting = slices.Delete(g.waiting, at, at+1)
	} else {
		return
	}
	q.held, q.bytes = q.held-1, q.bytes-h.size
	switch {
	case g.out == nil && len(g.waiting) == 0:
		delete(q.groups, g.name)
	case g.out == nil && !slices.Contains(q.order, g):
		q.order = append(q.order, g)
	}
}
