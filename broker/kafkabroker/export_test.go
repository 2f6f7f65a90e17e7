package kafkabroker

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Outdate makes the sink look at the topic again with the next call.
func (s *Sink) Outdate(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[topic]
	v := *t.view.Load()
	v.at = time.Time{}
	t.view.Store(&v)
}

// Partitions is how many partitions the sink knows of.
func (s *Sink) Partitions(topic string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.topics[topic].view.Load().parts)
}

// SessionTimeout is what the source asks of the broker.
func (s *Source) SessionTimeout() any { return s.client.OptValue(kgo.SessionTimeout) }
