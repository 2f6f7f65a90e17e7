package pubsubbroker

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/iterator"

	"github.com/postrider/postrider/broker"
)

// looking is the permission that shows a topic and its subscriptions.
const looking = "pubsub.topics.get"

// lost is why a topic needs a subscription.
const lost = "messages that are published before the first subscription exists are lost"

// subscribe is the command that creates a subscription of a topic.
func (s *Sink) subscribe(name string) string {
	return fmt.Sprintf("gcloud pubsub subscriptions create NAME --project %s --topic %s --enable-message-ordering --message-retention-duration 7d", s.opts.Project, name)
}

// noted returns err, and remembers a topic that is missing: the person who creates it
// creates its subscription afterwards.
func (s *Sink) noted(name string, err error) error {
	if e := broker.Classify(err); e != nil && e.Code == codeMissing {
		s.awaited.Missing(name)
	}
	return err
}

// ready returns an error while a topic that was missing has no subscription. Any other
// topic costs no request. Credentials that may not look show nothing: the topic then
// counts as one that has a subscription.
func (s *Sink) ready(ctx context.Context, name string) error {
	return s.awaited.Ready(ctx, name, func(ctx context.Context) error {
		err := s.noted(name, s.heard(ctx, name))
		switch e := broker.Classify(err); {
		case e == nil || e.Code == codeAccess:
			return nil
		case ctx.Err() != nil: // the end of the call is no answer, and no outage
			return ctx.Err()
		case e.Code == codeUnheard:
			return broker.Outage(fmt.Errorf("topic %q of project %s was missing and has no subscription yet; %s; create one: %s; to publish without a subscription, restart the relays", name, s.opts.Project, lost, s.subscribe(name)), codeUnheard, name)
		}
		return err
	})
}

var errUnheard = errors.New("the topic has no subscription")

// heard returns an error with codeUnheard if a message that is published to a topic now
// is lost: the topic has no subscription and keeps no messages for later ones.
func (s *Sink) heard(ctx context.Context, name string) error {
	client, err := s.line.get(ctx)
	if err != nil {
		return lacking(err)
	}
	call, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	it := client.ListTopicSubscriptions(call, &pubsubpb.ListTopicSubscriptionsRequest{Topic: s.topic(name), PageSize: 1}, once())
	_, err = it.Next()
	if err == nil {
		return nil
	}
	if !errors.Is(err, iterator.Done) {
		return s.failed(call, client, refusal(err, subject{kind: "topic", project: s.opts.Project, name: name, permission: looking}))
	}
	t, err := s.get(ctx, name)
	if err != nil || t.GetMessageRetentionDuration().AsDuration() > 0 {
		return err
	}
	return broker.Outage(errUnheard, codeUnheard, name)
}
