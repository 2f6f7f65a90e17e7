package kafkabroker

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// topic is what the sink knows of a topic.
type topic struct {
	sink     *Sink
	name     string
	maxBatch atomic.Int64 // bytes
	parts    atomic.Pointer[[]*partition]
	next     atomic.Uint32 // partition of the next call's messages without a key

	mu sync.Mutex // one look at a time
	id atomic.Pointer[[16]byte]
}

// topicOf returns a topic that exists, asking the broker the first time.
func (s *Sink) topicOf(ctx context.Context, name string) (*topic, error) {
	s.mu.Lock()
	t := s.topics[name]
	if t == nil {
		t = &topic{sink: s, name: name}
		t.maxBatch.Store(int64(s.maxBatch))
		s.topics[name] = t
	}
	s.mu.Unlock()
	if t.parts.Load() != nil {
		return t, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.parts.Load() != nil {
		return t, nil
	}
	if err := t.look(ctx); err != nil {
		s.mu.Lock()
		if s.topics[name] == t {
			delete(s.topics, name)
		}
		s.mu.Unlock()
		return nil, err
	}
	t.readLimit(ctx)
	return t, nil
}

// refresh looks again who leads.
func (t *topic) refresh(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.look(ctx)
}

// look reads partitions and leaders. A number of partitions that has grown is
// taken over: from then on some keys go elsewhere, as with every producer.
func (t *topic) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.sink.timeout)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	mt := kmsg.NewMetadataRequestTopic()
	mt.Topic = kmsg.StringPtr(t.name)
	req.Topics = append(req.Topics, mt)
	resp, err := req.RequestWith(ctx, t.sink.client)
	if err != nil {
		return fmt.Errorf("asking for the topic: %w", err)
	}
	if len(resp.Topics) != 1 {
		return errNoTopic
	}
	rt := &resp.Topics[0]
	if err := kerr.ErrorForCode(rt.ErrorCode); err != nil {
		return fmt.Errorf("%w: %w", errNoTopic, err)
	}
	if len(rt.Partitions) == 0 {
		return errNoPartition
	}
	id := rt.TopicID
	t.id.Store(&id)
	parts := make([]*partition, len(rt.Partitions))
	if old := t.parts.Load(); old != nil {
		parts = append(parts[:0], *old...)
		for len(parts) < len(rt.Partitions) {
			parts = append(parts, nil)
		}
	}
	for i := range rt.Partitions {
		rp := &rt.Partitions[i]
		if int(rp.Partition) >= len(parts) || rp.Partition < 0 {
			return fmt.Errorf("partition %d of %d", rp.Partition, len(rt.Partitions))
		}
		if parts[rp.Partition] == nil {
			parts[rp.Partition] = &partition{topic: t, num: rp.Partition}
		}
		parts[rp.Partition].leader.Store(t.sink.leaderOf(rp.Leader))
	}
	t.parts.Store(&parts)
	return nil
}

// readLimit lowers maxBatch to the topic's own limit, where we may read it.
// Where we may not, the broker refuses what is too large and we split.
func (t *topic) readLimit(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, t.sink.timeout)
	defer cancel()
	req := kmsg.NewPtrDescribeConfigsRequest()
	res := kmsg.NewDescribeConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, t.name
	res.ConfigNames = []string{"max.message.bytes"}
	req.Resources = append(req.Resources, res)
	resp, err := req.RequestWith(ctx, t.sink.client)
	if err != nil {
		return
	}
	for _, r := range resp.Resources {
		for _, c := range r.Configs {
			if c.Name != "max.message.bytes" || c.Value == nil {
				continue
			}
			if n, err := strconv.ParseInt(*c.Value, 10, 64); err == nil && n > 0 && n < t.maxBatch.Load() {
				t.maxBatch.Store(n)
			}
		}
	}
}

// validTopic reports whether Kafka allows the name.
func validTopic(name string) bool {
	if name == "" || len(name) > 249 || name == "." || name == ".." {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}
