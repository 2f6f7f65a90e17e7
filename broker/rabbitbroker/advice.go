package rabbitbroker

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
)

// Advise is [broker.Info].Advise for topics that are queues: AMQP cannot list the
// bindings of an exchange. It sees a queue's arguments if the
// user has the configure permission, and no policies.
func (s *Sink) Advise(ctx context.Context, topics []string) (all []broker.Advice, err error) {
	if s.opts.Exchange != "" || len(topics) == 0 {
		return nil, nil
	}
	c, wire, err := s.dialer.open(ctx)
	if err != nil {
		return nil, err
	}
	defer wire.Close()
	err = within(ctx, wire, func() error {
		for _, topic := range topics {
			err := checkQueue(c, topic)
			if err == nil {
				var found []broker.Advice
				found, err = weaknesses(c, topic)
				all = append(all, found...)
			}
			if err := lost(err); err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}

// weaknesses returns advice about an existing queue, and an error if its arguments
// cannot be found out.
func weaknesses(c *amqp.Connection, queue string) (all []broker.Advice, err error) {
	note := func(what, why, fix string) {
		all = append(all, broker.Advice{Topic: queue, What: fmt.Sprintf("queue %q %s", queue, what), Why: why, Fix: fix})
	}
	const again = "delete the queue and declare it "
	args, err := findArguments(c, queue)
	switch {
	case errors.Is(err, errClassic):
		note("is not durable, or is deleted with its connection or its last consumer", "confirmed messages are lost with it", again+"durable, with x-queue-type=quorum")
		return all, nil
	case err != nil:
		return nil, err
	}
	if kind := args["x-queue-type"]; kind != "quorum" && kind != "stream" {
		note("is a classic queue", "confirmed messages are on one node only", again+"with x-queue-type=quorum")
	}
	limited := args["x-max-length"] != nil || args["x-max-length-bytes"] != nil
	if overflow := args["x-overflow"]; limited && overflow != "reject-publish" && overflow != "reject-publish-dlx" {
		note("drops its oldest messages when it is full", "they may be unread, although they were confirmed", again+"with x-overflow=reject-publish: the relay then waits until there is room")
	}
	if ttl := args["x-message-ttl"]; ttl != nil {
		note(fmt.Sprintf("drops messages after %v ms", ttl), "they may be unread", again+"without x-message-ttl")
	}
	if idle := args["x-expires"]; idle != nil {
		note(fmt.Sprintf("is deleted when unused for %v ms", idle), "its unread messages are lost with it", again+"without x-expires")
	}
	return all, nil
}
