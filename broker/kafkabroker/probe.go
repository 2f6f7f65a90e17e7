package kafkabroker

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/broker"
)

var _ broker.Prober = (*Sink)(nil)

// Probe implements broker.Prober. A topic that may be made by the first record is
// missing until then.
func (s *Sink) Probe(ctx context.Context, topics []string) ([]error, error) {
	if err := s.client.Ping(ctx); err != nil {
		return nil, fmt.Errorf("reach kafka: %w", remedy(err, ""))
	}
	missing := make([]error, len(topics))
	for i, topic := range topics {
		name := s.prefix + topic
		if !validTopic(name) {
			missing[i] = fmt.Errorf("%q: %w", name, errTopicName)
		} else if _, _, err := s.topicOf(ctx, name); err != nil {
			missing[i] = fmt.Errorf("%q: %w", name, remedy(err, name))
		}
	}
	return missing, nil
}
