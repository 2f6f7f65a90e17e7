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

// Partitions returns the number of partitions that the sink knows.
func (s *Sink) Partitions(topic string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.topics[topic].view.Load().parts)
}

// SessionTimeout returns the session timeout that the source requests.
func (s *Source) SessionTimeout() any { return s.client.OptValue(kgo.SessionTimeout) }
