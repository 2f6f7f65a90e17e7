package natsbroker

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/broker"
)

// Keeps is [broker.Info].Keeps.
func (s *Sink) Keeps(ctx context.Context, topic string) (broker.Keeping, error) {
	c, err := s.stream(ctx, Subject(s.prefix, topic))
	if err != nil {
		return broker.Keeping{}, fmt.Errorf("natsbroker: read the retention of topic %s: %w", topic, err)
	}
	if c.Retention != jetstream.LimitsPolicy {
		return broker.Keeping{Removes: true, For: c.MaxAge, Setting: "the retention policy of stream " + c.Name}, nil
	}
	return broker.Keeping{For: c.MaxAge, Setting: "MaxAge of stream " + c.Name}, nil
}
