package pubsubbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/iterator"

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
		err = refusal(err, subject{kind: "topic", project: s.opts.Project, name: name, permission: "pubsub.topics.get"})
		if errors.Is(call.Err(), context.DeadlineExceeded) || rejected(err) {
			s.line.doubt(client, s.opts.Timeout)
		}
		return nil, err
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
		e := broker.Classify(s.look(ctx, name))
		switch {
		case e == nil || e.Code == codeAccess: // a publisher needs no permission to look
		case e.Code == codeMissing:
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
		client, err := s.line.get(ctx)
		if err != nil {
			return nil, lacking(err)
		}
		it := client.ListTopicSubscriptions(ctx, &pubsubpb.ListTopicSubscriptionsRequest{Topic: s.topic(name), PageSize: 1}, once())
		_, err = it.Next()
		if errors.Is(err, iterator.Done) {
			t, err := s.get(ctx, name)
			if err == nil && t.GetMessageRetentionDuration().AsDuration() == 0 {
				all = append(all, broker.Advice{
					Topic: topic, What: fmt.Sprintf("topic %s has no subscription", name),
					Why: "messages that are published before the first subscription exists are lost",
					Fix: fmt.Sprintf("gcloud pubsub subscriptions create NAME --project %s --topic %s --enable-message-ordering --message-retention-duration 7d", s.opts.Project, name),
				})
			}
			continue
		}
		if err != nil {
			e := broker.Classify(refusal(err, subject{kind: "topic", project: s.opts.Project, name: name, permission: "pubsub.topics.get"}))
			if e.Code == codeMissing || e.Code == codeAccess {
				continue
			}
			return nil, fmt.Errorf("pubsubbroker: read the settings of %s: %w", name, e)
		}
	}
	return all, nil
}

const (
	leastDeadline = 10 * time.Second // the service's limits
	mostDeadline  = 600 * time.Second
)
