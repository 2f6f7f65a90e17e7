package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/broker"
)

var errNoStream = errors.New("no stream takes the subject")

// probeTimeout bounds a look at the server, and at all streams.
const probeTimeout = time.Minute

// pingWait is how long a connection that is being made may take.
const pingWait = 5 * time.Second

// Ping is [broker.Info].Ping. While there is no connection it waits a moment for
// the client, which continues trying.
func (s *Sink) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingWait)
	defer cancel()
	return s.reach(ctx)
}

// reach makes a round trip to the server, and returns why there is none: without a
// connection the end of ctx explains nothing.
func (s *Sink) reach(ctx context.Context) error {
	err := s.nc.FlushWithContext(ctx)
	if err == nil {
		return nil
	}
	if !s.nc.IsConnected() {
		err = notConnected(s.nc)
	}
	if unwelcome(s.nc.LastError()) {
		return fmt.Errorf("reach nats: %w: %w", broker.ErrRefused, err)
	}
	return fmt.Errorf("reach nats: %w", err)
}

// Probe is [broker.Info].Probe. A stream that cannot acknowledge counts as none.
func (s *Sink) Probe(ctx context.Context, topics []string) ([]error, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout) // the client refuses a context without an end
	defer cancel()
	if err := s.reach(ctx); err != nil {
		return nil, err
	}
	if _, err := s.acks.listen(); errors.Is(err, nats.ErrPermissionViolation) {
		return nil, fmt.Errorf("reach nats: %w: %w", broker.ErrRefused, err)
	} else if err != nil {
		return nil, fmt.Errorf("reach nats: %w", err)
	}
	missing := make([]error, len(topics))
	for i, topic := range topics {
		subject := Subject(s.prefix, topic)
		if _, err := s.stream(ctx, subject); err != nil {
			missing[i] = fmt.Errorf("%q: %w", subject, err)
		}
	}
	return missing, nil
}

// stream is the one that takes the subject.
func (s *Sink) stream(ctx context.Context, subject string) (*jetstream.StreamConfig, error) {
	name, err := s.js.StreamNameBySubject(ctx, subject)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("%w; make one: nats stream add --subjects %q", errNoStream, subject)
	} else if err != nil {
		return nil, s.api(err)
	}
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return nil, s.api(err)
	}
	c := &stream.CachedInfo().Config
	switch {
	case c.NoAck:
		return nil, fmt.Errorf("stream %s does not acknowledge: nats stream edit %s --ack", name, name)
	case c.Sealed:
		return nil, fmt.Errorf("stream %s is sealed and takes nothing more", name)
	}
	return c, nil
}

// api adds that we may not ask, where the server has said so.
func (s *Sink) api(err error) error {
	return may(s.nc, err, "allow this user to publish to $JS.API.STREAM.NAMES and $JS.API.STREAM.INFO.>, and to subscribe to _INBOX.>")
}
