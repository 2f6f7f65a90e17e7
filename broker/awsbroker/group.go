package awsbroker

import (
	"math/big"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/broker"
)

// group is what a source has in hand of one message group: a message of a
// standard queue is a group of its own. Its fields are guarded by the source's mu.
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

// item is one received message; it is its delivery's token. delivery, handle, number,
// group and poll are constant.
type item struct {
	group    *group
	handle   string
	number   *big.Int // grows within a group; nil in a standard queue
	delivery broker.Delivery
	poll     *answer // that brought it

	// Others see it at a time between these two. A poll lasts long, and the service
	// hides a message at some moment of it.
	earliest, latest time.Time
}

// answer is what one poll has brought.
type answer struct {
	msgs           []types.Message
	asked, arrived time.Time
}

// live reports whether the item is the receiver's to settle.
func (it *item) live() bool { return it.group.out == it }

// add puts a received message behind those of its group. One that is received twice
// was visible meanwhile, and with it everything behind it: others may have that by
// now. The caller holds mu.
func (s *Source) add(m *types.Message, from *answer) {
	it := &item{
		handle: aws.ToString(m.ReceiptHandle), poll: from,
		earliest: from.asked.Add(s.opts.Visibility), latest: from.arrived.Add(s.opts.Visibility),
	}
	name := m.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)]
	if n, ok := new(big.Int).SetString(m.Attributes[string(types.MessageSystemAttributeNameSequenceNumber)], 10); ok {
		it.number = n
	}
	if name == "" || it.number == nil {
		name = "id:" + aws.ToString(m.MessageId) + ":" + it.handle
	} else {
		name = "group:" + name
	}
	g := s.groups[name]
	if g == nil {
		g = &group{name: name}
		s.groups[name] = g
	}
	it.group = g
	for _, old := range slices.Clone(g.all()) {
		if it.number != nil && old.number != nil && old.number.Cmp(it.number) >= 0 {
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
		for len(g.waiting) > 0 && !now.Before(g.waiting[0].latest) {
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

// lose forgets an item that others may receive, and what came with it behind it. What a
// later poll brought stays: the service hands that out when the item is deleted. The
// caller holds mu.
func (s *Source) lose(it *item) {
	all := it.group.all()
	at := slices.Index(all, it)
	if at < 0 {
		return
	}
	for _, behind := range slices.Clone(all[at:]) {
		if behind.poll == it.poll {
			s.remove(behind)
		}
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

// attempt is how often a message was received.
func attempt(m *types.Message) int {
	n, err := strconv.Atoi(m.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)])
	if err != nil || n < 1 {
		return 0
	}
	return n
}
