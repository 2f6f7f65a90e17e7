package rabbitbroker

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
)

var (
	_ broker.Prober    = (*Sink)(nil)
	_ broker.Previewer = (*Sink)(nil)
)

// Probe implements broker.Prober, on a connection of its own. With an exchange
// the topics are there if it is: its bindings cannot be asked for.
func (s *Sink) Probe(ctx context.Context, topics []string) ([]error, error) {
	c, wire, err := s.dialer.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach rabbitmq: %w", err)
	}
	defer wire.Close()
	missing := make([]error, len(topics))
	err = within(ctx, wire, func() error {
		if s.opts.Exchange != "" {
			gone := checkExchange(c, s.opts.Exchange)
			for i := range missing {
				missing[i] = gone
			}
			return lost(gone)
		}
		for i, topic := range topics {
			missing[i] = checkQueue(c, topic)
			if err := lost(missing[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reach rabbitmq: %w", err)
	}
	return missing, nil
}

// lost is err if it is not the broker's own word about what was asked.
func lost(err error) error {
	if err == nil || replyCode(err) != "" {
		return nil
	}
	return err
}

var errName = errors.New("a queue's name has at most 255 bytes")

// checkQueue looks for a queue on a channel of its own, which a missing one ends.
func checkQueue(c *amqp.Connection, queue string) error {
	if len(queue) > shortMost {
		return broker.Outage(errName, codeRoutingKey, queue)
	}
	ch, err := c.Channel()
	if err != nil {
		return broker.Outage(fmt.Errorf("no channel: %w", err), replyCode(err), "")
	}
	defer ch.Close()
	if _, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil {
		return notChecked(err, "queue", queue)
	}
	return nil
}
