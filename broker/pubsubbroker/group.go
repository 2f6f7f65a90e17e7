package pubsubbroker

import (
	"slices"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	"github.com/postrider/postrider/broker"
)

// group is what a source has in hand of one ordering key: a message without one is a
// group of its own. Its fields are guarded by the source's mu.
type group struct {
	name    string
	out     *item   // with the receiver
	waiting []*item // behind it, in order
}

// all is what the group has, in order.
func (g *group) all() []*item {
	if g.out == nil {
		return g.waiting
	}
	return append([]*item{g.out}, g.waiting...)
}

// item is one received message; it is its delivery's token. All but until is constant.
type item struct {
	group     *group
	ack, id   string
	published time.Time
	delivery  broker.Delivery
	until     time.Time // when others may receive it, at the earliest
}

// live reports whether the item is the receiver's to settle.
func (it *item) live() bool { return it.group.out == it }

// add puts a received message behind those of its group. A repeated message was given
// up by the service, and everything behind it too. The caller holds mu.
func (s *Source) add(m *pubsubpb.ReceivedMessage, until time.Time) {
	it := &item{ack: m.GetAckId(), id: m.GetMessage().GetMessageId(), published: m.GetMessage().GetPublishTime().AsTime(), until: until}
	name := "key:" + m.GetMessage().GetOrderingKey()
	if m.GetMessage().GetOrderingKey() == "" {
		name = "id:" + it.id + ":" + it.ack
	}
	g := s.groups[name]
	if g == nil {
		g = &group{name: name}
		s.groups[name] = g
	}
	it.group = g
	stale := false
	for _, old := range slices.Clone(g.all()) {
		if stale = stale || old.id == it.id || old.published.After(it.published); stale {
			s.remove(old)
		}
	}
	it.delivery = s.decode(m)
	it.delivery.Token = it
	g.waiting = append(g.waiting, it)
	s.groups[name] = g // removing may have dropped it
	s.held++
	if !slices.Contains(s.order, g) {
		s.order = append(s.order, g)
	}
}

// take hands out the first message of each group that has none out. The caller holds mu.
func (s *Source) take(limit int, now time.Time) (items []*item) {
	rest := s.order[:0]
	for _, g := range s.order {
		for len(g.waiting) > 0 && !now.Before(g.waiting[0].until) {
			s.lose(g.waiting[0])
		}
		if len(items) < limit && g.out == nil && len(g.waiting) > 0 {
			g.out, g.waiting = g.waiting[0], g.waiting[1:]
			items = append(items, g.out)
		}
		if g.out == nil && len(g.waiting) > 0 {
			rest = append(rest, g)
		}
	}
	clear(s.order[len(rest):])
	s.order = rest
	return items
}

// lose forgets an item that others may receive, and what is behind it: the service
// delivers that again too. The caller holds mu.
func (s *Source) lose(it *item) {
	all := it.group.all()
	at := slices.Index(all, it)
	if at < 0 {
		return
	}
	for _, behind := range slices.Clone(all[at:]) {
		s.remove(behind)
	}
}

// remove takes an item out of its group. The caller holds mu.
func (s *Source) remove(it *item) {
	g := it.group
	if g.out == it {
		g.out = nil
	} else if at := slices.Index(g.waiting, it); at >= 0 {
		g.waiting = slices.Delete(g.waiting, at, at+1)
	} else {
		return
	}
	s.held--
	switch {
	case g.out == nil && len(g.waiting) == 0:
		delete(s.groups, g.name)
	case g.out == nil && !slices.Contains(s.order, g):
		s.order = append(s.order, g)
	}
}
