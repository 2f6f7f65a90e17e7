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

// probeTimeout bounds Probe, over all streams.
const probeTimeout = time.Minute

// pingWait bounds the wait for a connection under construction.
const pingWait = 5 * time.Second

// Ping is [broker.Info].Ping. Without a connection it waits up to pingWait for
// the client, which keeps reconnecting.
func (s *Sink) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingWait)
	defer cancel()
	return s.reach(ctx)
}

// reach makes a round trip to the server and returns why that fails: without a
// connection the reason, not the end of ctx.
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

// Probe is [broker.Info].Probe. A stream that does not acknowledge is an error too.
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

// stream returns the configuration of the stream that takes the subject.
func (s *Sink) stream(ctx context.Context, subject string) (*jetstream.StreamConfig, error) {
	name, err := s.js.StreamNameBySubject(ctx, subject)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("%w; create one: nats stream add --subjects %q", errNoStream, subject)
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
		return nil, fmt.Errorf("stream %s is sealed and accepts no messages", name)
	}
	return c, nil
}

// api adds the remedy to err if the server has refused the request or its answer.
func (s *Sink) api(err error) error {
	return may(s.nc, err, "allow this user to publish to $JS.API.STREAM.NAMES and $JS.API.STREAM.INFO.>, and to subscribe to _INBOX.>")
}
