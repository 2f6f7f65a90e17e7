package rabbitbroker

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
)

// Advise is [broker.Info].Advise for topics that are queues: what an exchange is
// bound to cannot be asked. It sees the arguments that a queue was declared with, if the
// user may configure the queue, and no policies.
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

// weaknesses are what a queue that is there lacks. An error is that it cannot be told.
func weaknesses(c *amqp.Connection, queue string) (all []broker.Advice, err error) {
	note := func(what, why, fix string) {
		all = append(all, broker.Advice{Topic: queue, What: fmt.Sprintf("queue %q %s", queue, what), Why: why, Fix: fix})
	}
	const again = "delete the queue and declare it "
	args, err := findArguments(c, queue)
	switch {
	case errors.Is(err, errClassic):
		note("is not durable, or goes with its connection or its last consumer", "what was confirmed is gone with it", again+"durable, with x-queue-type=quorum")
		return all, nil
	case err != nil:
		return nil, err
	}
	if kind := args["x-queue-type"]; kind != "quorum" && kind != "stream" {
		note("is a classic queue", "what was confirmed is on one node only", again+"with x-queue-type=quorum")
	}
	limited := args["x-max-length"] != nil || args["x-max-length-bytes"] != nil
	if overflow := args["x-overflow"]; limited && overflow != "reject-publish" && overflow != "reject-publish-dlx" {
		note("drops its oldest messages when it is full", "they may be ones that nobody has read, and were confirmed", again+"with x-overflow=reject-publish: the relay then waits until there is room")
	}
	if ttl := args["x-message-ttl"]; ttl != nil {
		note(fmt.Sprintf("drops messages after %v ms", ttl), "they may be ones that nobody has read", again+"without x-message-ttl")
	}
	if idle := args["x-expires"]; idle != nil {
		note(fmt.Sprintf("is deleted when nobody has used it for %v ms", idle), "with what nobody has read", again+"without x-expires")
	}
	return all, nil
}
