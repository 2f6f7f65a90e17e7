package pubsubbroker

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	"github.com/postrider/postrider/broker"
)

// Ping is [broker.Info].Ping: it asks for a topic that cannot exist. Credentials that may
// not ask are accepted ones.
func (s *Sink) Ping(ctx context.Context) error {
	e := broker.Classify(s.look(ctx, "postrider-ping"))
	if e == nil || e.Code == codeMissing || e.Code == codeAccess {
		return nil
	}
	return unreached(e)
}

// unreached returns Probe's error, which has ErrRefused if a person must act.
func unreached(e *broker.Error) error {
	if e.Code == codeCredentials {
		return fmt.Errorf("reach Pub/Sub: %w: %w", broker.ErrRefused, e)
	}
	return fmt.Errorf("reach Pub/Sub: %w", e)
}

// look asks for a topic.
func (s *Sink) look(ctx context.Context, name string) error {
	_, err := s.get(ctx, name)
	return err
}

func (s *Sink) get(ctx context.Context, name string) (*pubsubpb.Topic, error) {
	client, err := s.line.get(ctx)
	if err != nil {
		return nil, lacking(err)
	}
	call, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	t, err := client.GetTopic(call, &pubsubpb.GetTopicRequest{Topic: s.topic(name)}, once())
	if err != nil {
		return nil, s.failed(call, client, refusal(err, subject{kind: "topic", project: s.opts.Project, name: name, permission: looking}))
	}
	return t, nil
}

// Probe is [broker.Info].Probe. Whether messages may be published to a topic shows with
// the first one.
func (s *Sink) Probe(ctx context.Context, topics []string) ([]error, error) {
	lacking := make([]error, len(topics))
	for i, topic := range topics {
		name := s.opts.Prefix + topic
		if lacking[i] = problem(name); lacking[i] != nil {
			continue
		}
		e := broker.Classify(s.noted(name, s.look(ctx, name)))
		if e == nil || e.Code == codeAccess { // a publisher needs no permission to look
			e = broker.Classify(s.ready(ctx, name))
		}
		switch {
		case e == nil:
		case e.Code == codeMissing || e.Code == codeUnheard:
			lacking[i] = e.Err
		default:
			return nil, unreached(e)
		}
	}
	return lacking, nil
}

// Advise is [broker.Info].Advise: messages of a topic without subscriptions are gone.
func (s *Sink) Advise(ctx context.Context, topics []string) (all []broker.Advice, err error) {
	for _, topic := range topics {
		name := s.opts.Prefix + topic
		if problem(name) != nil { // Probe reports it
			continue
		}
		err := s.heard(ctx, name)
		if err == nil {
			continue
		}
		switch e := broker.Classify(err); e.Code {
		case codeUnheard:
			all = append(all, broker.Advice{Topic: topic, What: fmt.Sprintf("topic %s has no subscription", name), Why: lost, Fix: s.subscribe(name)})
		case codeMissing, codeAccess:
		default:
			return nil, fmt.Errorf("pubsubbroker: read the settings of %s: %w", name, e)
		}
	}
	return all, nil
}

const (
	leastDeadline = 10 * time.Second // the service's limits
	mostDeadline  = 600 * time.Second
)
