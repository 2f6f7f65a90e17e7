package brokertest_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/envelope"
)

// TestQueueService: the suite runs on a queue service with
// an HTTP API (Amazon SQS FIFO): ten entries and 256 KiB per call, short
// keys, deduplication that is always on, and the next message of a key only
// after the last one is settled.
func TestQueueService(t *testing.T) {
	brokertest.RunVirtual(t, func(*testing.T) *brokertest.Env { return queueService() })
}

func queueService() *brokertest.Env {
	const most = 256 << 10
	e := memory()
	e.Server = "memory, made like a queue service"
	sent := &sentIDs{all: make(map[string]map[string]bool)}
	e.Sink, e.Second = entries{e.Sink, most, sent}, entries{e.Second, most, sent}
	e.TooLarge, e.Largest, e.PerKey = most, most-1000, 1
	inLog, inLogOf := e.Log, e.LogOf
	e.Log = func(ctx context.Context) ([]postrider.Message, error) { return sent.once(inLog(ctx)) }
	e.LogOf = func(ctx context.Context, topic string) ([]postrider.Message, error) {
		return sent.once(inLogOf(ctx, topic))
	}
	wrapSource(e, locking)
	e.Mortal, e.Flaky = e.Source, flaky(e.Source)
	e.Without = maps.Clone(e.Without)
	delete(e.Without, "sink/dedup")
	e.Without["source/gap"] = "a key's next message comes when the one before is settled"
	return e
}

// sentIDs has the deduplication ids under which each message was sent.
type sentIDs struct {
	mu  sync.Mutex
	all map[string]map[string]bool
}

func nameOf(m *postrider.Message) string { return m.ID + "/" + m.Headers[envelope.Generation] }

func (s *sentIDs) note(m *postrider.Message, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := nameOf(m)
	if s.all[name] == nil {
		s.all[name] = make(map[string]bool)
	}
	s.all[name][id] = true
}

// once is a log without what the service dropped: it keeps one copy for each
// deduplication id.
func (s *sentIDs) once(log []postrider.Message, err error) (kept []postrider.Message, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	copies := make(map[string]int)
	for i := range log {
		name := nameOf(&log[i])
		if copies[name] < max(len(s.all[name]), 1) {
			kept = append(kept, log[i])
		}
		copies[name]++
	}
	return kept, err
}

// entries is a sink whose service takes a few messages at a time.
type entries struct {
	broker.Sink
	most int
	sent *sentIDs
}

func (s entries) Info() broker.Info {
	return broker.Info{Name: "queue", MaxBatch: 10, MaxBatchBytes: s.most, MaxMessageBytes: s.most, MaxKeyBytes: 128, DedupWindow: 5 * time.Minute}
}

func (s entries) Deliver(ctx context.Context, batch broker.Batch) []error {
	msgs := batch.Messages
	info, size := s.Info(), 0
	for i := range msgs {
		size += msgs[i].Size()
	}
	if len(msgs) > info.MaxBatch || size > info.MaxBatchBytes && len(msgs) > 1 {
		return all(msgs, broker.Failed(errors.New("the call is larger than Info says"), "", ""))
	}
	return broker.PerKey(ctx, msgs, 1, func(ctx context.Context, m postrider.Message) error {
		if len(m.Key) > info.MaxKeyBytes || m.Size() > s.most {
			return broker.Rejected(errors.New("more than an entry may have"), "", m.Topic)
		}
		s.sent.note(&m, broker.DedupID(batch.Pipe, m.Topic, &m))
		return errors.Join(s.Sink.Deliver(ctx, broker.Batch{Messages: []postrider.Message{m}})...)
	})
}

// locked is a source that hands out one message of a key at a time.
type locked struct {
	broker.Source
	mu    sync.Mutex
	queue []broker.Delivery
	busy  map[string]bool
}

func locking(s broker.Source) broker.Source { return &locked{Source: s, busy: make(map[string]bool)} }

func (s *locked) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if ds := s.free(limit); len(ds) > 0 {
			return ds, nil
		}
		ds, err := s.Source.Receive(ctx, 10)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		s.queue = append(s.queue, ds...)
		s.mu.Unlock()
	}
}

// free takes what may be handed out from the queue.
func (s *locked) free(limit int) (ds []broker.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rest []broker.Delivery
	for _, d := range s.queue {
		if key := d.Message.Key; len(ds) == limit || s.busy[key] {
			rest = append(rest, d)
		} else {
			ds = append(ds, d)
			s.busy[key] = key != ""
		}
	}
	s.queue = rest
	return ds
}

// Settle gives a message back together with the messages of its key that wait.
func (s *locked) Settle(ctx context.Context, vs []broker.Verdict) error {
	if err := s.Source.Settle(ctx, vs); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var back []broker.Verdict
	for _, v := range vs {
		key := v.Delivery.Message.Key
		delete(s.busy, key)
		if v.Ack {
			continue
		}
		var rest []broker.Delivery
		for _, d := range s.queue {
			if d.Message.Key == key {
				back = append(back, broker.Verdict{Delivery: d})
			} else {
				rest = append(rest, d)
			}
		}
		s.queue = rest
	}
	if len(back) == 0 {
		return nil
	}
	return s.Source.Settle(ctx, back)
}
