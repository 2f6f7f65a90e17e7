package kafkabroker

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/secret"
)

// Ping is [broker.Info].Ping.
func (s *Sink) Ping(ctx context.Context) error {
	switch err := s.client.Ping(ctx); {
	case err == nil:
		return nil
	case errors.Is(err, kerr.SaslAuthenticationFailed), errors.Is(err, kerr.UnsupportedSaslMechanism), errors.Is(err, secret.ErrUnreadable):
		return fmt.Errorf("reach kafka: %w: %w", broker.ErrRefused, remedy(err, ""))
	default:
		return fmt.Errorf("reach kafka: %w", remedy(err, ""))
	}
}

// Probe is [broker.Info].Probe. A topic that the broker would create on the first
// record is reported as missing until then.
func (s *Sink) Probe(ctx context.Context, topics []string) ([]error, error) {
	if err := s.Ping(ctx); err != nil {
		return nil, err
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
