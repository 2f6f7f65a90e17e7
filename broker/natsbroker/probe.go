package natsbroker

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/broker"
)

var (
	_ broker.Prober = (*Sink)(nil)

	errNoStream = errors.New("no stream listens to the subject")
)

// Probe implements broker.Prober.
func (s *Sink) Probe(ctx context.Context, topics []string) ([]error, error) {
	if err := s.nc.FlushWithContext(ctx); err != nil {
		return nil, fmt.Errorf("reach nats: %w", err)
	}
	missing := make([]error, len(topics))
	for i, topic := range topics {
		subject := Subject(s.prefix, topic)
		_, err := s.js.StreamNameBySubject(ctx, subject)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			missing[i] = fmt.Errorf("%q: %w", subject, errNoStream)
		case err != nil:
			missing[i] = fmt.Errorf("%q: %w", subject, err)
		}
	}
	return missing, nil
}
