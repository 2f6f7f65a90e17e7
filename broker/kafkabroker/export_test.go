package kafkabroker

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Outdate makes the sink refresh its view of the topic in the next call.
func (s *Sink) Outdate(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[topic]
	v := *t.view.Load()
	v.at = time.Time{}
	t.view.Store(&v)
}

// Age makes the sink's view of the topic older by d.
func (s *Sink) Age(topic string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[topic]
	v := *t.view.Load()
	v.at, v.limits = v.at.Add(-d), v.limits.Add(-d)
	t.view.Store(&v)
}

// MaxBatch returns the largest batch, in bytes, that the sink makes for the topic.
func (s *Sink) MaxBatch(topic string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.topics[topic].maxBatch.Load()
}

// Partitions returns the number of partitions that the sink knows.
func (s *Sink) Partitions(topic string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.topics[topic].view.Load().parts)
}

// PartitionOf returns the partition of a key among n.
func PartitionOf(key string, n int) int { return partitionOf(key, n) }

// Forget makes the sink forget a topic that it knows, like a broker with old metadata.
func (s *Sink) Forget(topic string) {
	s.mu.Lock()
	t := s.topics[topic]
	s.mu.Unlock()
	s.forget(t)
}

// Queued returns the number of calls that wait for a partition, 0 while its topic is unknown.
func (s *Sink) Queued(topic string, partition int) int {
	s.mu.Lock()
	t := s.topics[topic]
	s.mu.Unlock()
	if t == nil || t.view.Load() == nil {
		return 0
	}
	p := t.view.Load().parts[partition]
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue)
}

// SessionTimeout returns the session timeout that the source requests.
func (s *Source) SessionTimeout() any { return s.client.OptValue(kgo.SessionTimeout) }
