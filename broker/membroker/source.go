package membroker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

// group is one named consumer: its sources share the work.
type group struct {
	topics map[string][]progress // per topic and partition
}

// progress is how far a consumer has come in one partition.
type progress struct {
	next int     // the first message that was never delivered
	open []*slot // delivered and not acknowledged, in log order
}

// slot is a message that was delivered to this consumer at least once.
type slot struct {
	message postrider.Message
	foreign bool
	offset  int
	attempt int
	owner   *Source   // who has it now; nil: given back
	due     time.Time // when given back: not before
}

// token finds a delivery again.
type token struct {
	slot      *slot
	attempt   int
	topic     string
	partition int
}

// Source receives for one named consumer. It is safe for concurrent use.
type Source struct {
	b        *Broker
	g        *group
	consumer string
	topics   []string
	closed   atomic.Bool
}

// ErrClosed is returned by a source after Close.
var ErrClosed = errors.New("membroker: source is closed")

// Source returns a receiver of topics for the named consumer. Sources of one
// name share the messages; every name receives all of them from the first on.
func (b *Broker) Source(consumer string, topics ...string) *Source {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.groups[consumer]
	if g == nil {
		g = &group{topics: make(map[string][]progress)}
		b.groups[consumer] = g
	}
	return &Source{b: b, g: g, consumer: consumer, topics: topics}
}

// Info implements broker.Source.
func (s *Source) Info() broker.SourceInfo { return broker.SourceInfo{Name: "memory"} }

// Extend does nothing: a delivery is its receiver's until it is settled or the
// source is closed.
func (s *Source) Extend(context.Context, []broker.Delivery) error { return nil }

// Close gives back everything that was not settled, as the end of a connection
// does. Deliveries of a closed source can no longer be settled.
func (s *Source) Close() {
	s.closed.Store(true)
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for _, parts := range s.g.topics {
		for i := range parts {
			for _, sl := range parts[i].open {
				if sl.owner == s {
					sl.owner, sl.due = nil, time.Time{}
				}
			}
		}
	}
	s.b.wake()
}

// Receive implements broker.Source.
func (s *Source) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if s.closed.Load() {
			return nil, ErrClosed
		}
		s.b.mu.Lock()
		ds, due := s.take(max(limit, 1))
		change := s.b.change
		s.b.mu.Unlock()
		if len(ds) > 0 {
			return ds, nil
		}
		if err := waitFor(ctx, change, due); err != nil {
			return nil, err
		}
	}
}

// waitFor returns when change is closed or due has come (zero: never).
func waitFor(ctx context.Context, change <-chan struct{}, due time.Time) error {
	var alarm <-chan time.Time
	if !due.IsZero() {
		t := time.NewTimer(time.Until(due))
		defer t.Stop()
		alarm = t.C
	}
	select {
	case <-change:
	case <-alarm:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// take collects what may be delivered now, and when the next one given back is due.
func (s *Source) take(limit int) (ds []broker.Delivery, due time.Time) {
	for _, name := range s.topics {
		t := s.b.topics[name]
		if t == nil {
			continue
		}
		parts := s.g.topics[name]
		if parts == nil {
			parts = make([]progress, len(t.partitions))
			s.g.topics[name] = parts
		}
		for p := range parts {
			var d time.Time
			ds, d = s.takeFrom(ds, limit, t, p, &parts[p])
			if !d.IsZero() && (due.IsZero() || d.Before(due)) {
				due = d
			}
		}
	}
	return ds, due
}

func (s *Source) takeFrom(ds []broker.Delivery, limit int, t *topic, p int, at *progress) ([]broker.Delivery, time.Time) {
	var due time.Time
	now := time.Now()
	held := make(map[string]bool) // keys whose earlier message is not ours to deliver
	for _, sl := range at.open {
		key := sl.message.Key
		switch {
		case key != "" && held[key]:
			continue
		case sl.owner == nil && !sl.due.After(now) && len(ds) < limit:
			sl.owner = s
			sl.attempt++
			ds = append(ds, s.delivery(sl, t.name, p))
		case sl.owner == nil:
			held[key] = true
			if sl.due.After(now) && (due.IsZero() || sl.due.Before(due)) {
				due = sl.due
			}
		case sl.owner != s:
			held[key] = true
		}
	}
	log := t.partitions[p]
	for ; at.next < len(log) && len(ds) < limit; at.next++ {
		sl := &slot{message: log[at.next].Message, foreign: log[at.next].Foreign, offset: at.next}
		at.open = append(at.open, sl)
		if sl.message.Key != "" && held[sl.message.Key] {
			continue // waits among the open ones behind its key's earlier message
		}
		sl.owner, sl.attempt = s, 1
		ds = append(ds, s.delivery(sl, t.name, p))
	}
	return ds, due
}

func (s *Source) delivery(sl *slot, topic string, p int) broker.Delivery {
	return broker.Delivery{
		Message: sl.message, Attempt: sl.attempt, Foreign: sl.foreign,
		Origin: fmt.Sprintf("%s/%d@%d", topic, p, sl.offset),
		Token:  token{slot: sl, attempt: sl.attempt, topic: topic, partition: p},
	}
}

// Settle implements broker.Source. Verdicts about deliveries that this source
// no longer holds change nothing.
func (s *Source) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for i, v := range verdicts {
		tk, ok := v.Delivery.Token.(token)
		if !ok {
			return fmt.Errorf("membroker: settle: verdict %d (%s): not a delivery of this source", i, v.Delivery.Origin)
		}
		if tk.slot.owner != s || tk.slot.attempt != tk.attempt {
			continue
		}
		if !v.Ack {
			tk.slot.owner, tk.slot.due = nil, time.Now().Add(v.Delay)
			continue
		}
		if parts := s.g.topics[tk.topic]; parts != nil {
			parts[tk.partition].remove(tk.slot)
		}
	}
	s.b.wake()
	return nil
}

func (p *progress) remove(sl *slot) {
	for i, o := range p.open {
		if o == sl {
			p.open = append(p.open[:i], p.open[i+1:]...)
			return
		}
	}
}
