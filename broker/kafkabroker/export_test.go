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

// SessionTimeout returns the session timeout that the source requests.
func (s *Source) SessionTimeout() any { return s.client.OptValue(kgo.SessionTimeout) }
