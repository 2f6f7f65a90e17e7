package rabbitbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/secret"
)

// Ping is [broker.Info].Ping, on a connection for messages. The heartbeats of an open
// connection show that the broker is alive, so Ping makes no request.
func (s *Sink) Ping(ctx context.Context) error {
	l := s.enter()
	defer s.leave(l)
	if _, err := s.session(ctx, l); err != nil {
		return unreached(err)
	}
	return nil
}

// Probe is [broker.Info].Probe, on a connection of its own. With an exchange it
// checks the exchange only: AMQP cannot list bindings.
func (s *Sink) Probe(ctx context.Context, topics []string) ([]error, error) {
	c, wire, err := s.dialer.open(ctx)
	if errors.Is(err, amqp.ErrCredentials) {
		// RabbitMQ answers a wrong password by closing the connection after 3 s. It also
		// closes it when it stops, but not twice.
		first := err
		if c, wire, err = s.dialer.open(ctx); ctx.Err() != nil {
			return nil, fmt.Errorf("reach rabbitmq: %w", first)
		}
	}
	if err != nil {
		return nil, unreached(err)
	}
	defer wire.Close()
	missing := make([]error, len(topics))
	err = within(ctx, wire, func() error {
		gone := checkExchange(c, s.opts.Exchange)
		may := func(topic string) error { return s.mayPublish(c, topic) }
		if s.opts.Exchange == "" { // the permission is the same for every queue, and each check is an error in the broker's log
			once := sync.OnceValue(func() error { return s.mayPublish(c, topics[0]) })
			may = func(string) error { return once() }
		}
		for i, topic := range topics {
			missing[i] = gone
			if gone == nil && s.opts.Exchange == "" {
				missing[i] = checkQueue(c, topic)
			}
			if missing[i] == nil {
				missing[i] = may(topic)
			}
			if err := lost(missing[i]); err != nil {
				return err
			}
		}
		return lost(gone)
	})
	if err != nil {
		return nil, fmt.Errorf("reach rabbitmq: %w", err)
	}
	return missing, nil
}

// unreached returns Probe's error, marked as refused if a person must act.
func unreached(err error) error {
	var e *amqp.Error
	limit := errors.As(err, &e) && strings.Contains(e.Reason, "limit") // of connections: other clients may close theirs
	switch broker.Classify(err).Code {
	case codeAccess, "NOT_ALLOWED":
		if !limit {
			return fmt.Errorf("reach rabbitmq: %w: %w", broker.ErrRefused, err)
		}
	}
	if errors.Is(err, secret.ErrUnreadable) {
		return fmt.Errorf("reach rabbitmq: %w: %w", broker.ErrRefused, err)
	}
	return fmt.Errorf("reach rabbitmq: %w", err)
}

// mayPublish checks the permission to publish to a topic.
func (s *Sink) mayPublish(c *amqp.Connection, topic string) error {
	err := mayPublish(c, s.opts.Exchange, topic)
	if refused := (*amqp.Error)(nil); s.opts.RoutingKey == RoutingByKey && errors.As(err, &refused) && refusedTopic.MatchString(refused.Reason) {
		return nil // future keys are unknown
	}
	return err
}

// mayPublish checks the permission to publish, on a channel of its own. RabbitMQ checks
// the permission on the exchange first and then the properties, two of which are invalid:
// so nothing is published in any case. RabbitMQ 3 checks a topic permission before the
// properties, RabbitMQ 4 after them.
func mayPublish(c *amqp.Connection, exchange, key string) error {
	ch, err := c.Channel()
	if err != nil {
		return broker.Outage(fmt.Errorf("no channel: %w", err), replyCode(err), "")
	}
	defer ch.Close()
	refusal := ch.NotifyClose(make(chan *amqp.Error, 1))
	err = ch.Publish(exchange, key, false, false, amqp.Publishing{Expiration: "never", UserId: "nobody asks"})
	if err == nil {
		err = answerOn(ch, refusal)
	}
	var e *amqp.Error
	if err == nil || errors.As(err, &e) && e.Code == amqp.PreconditionFailed {
		return nil
	}
	if e == nil || e.Code != amqp.AccessRefused {
		return notChecked(err, "exchange", cmp.Or(exchange, "amq.default"))
	}
	fix := "give the user the write permission on exchange " + cmp.Or(exchange, "amq.default") + " (rabbitmqctl set_permissions)"
	if refusedTopic.MatchString(e.Reason) {
		fix = "give the user the permission for this routing key (rabbitmqctl set_topic_permissions)"
	}
	return broker.Outage(fmt.Errorf("%w: %s", err, fix), replyCode(err), cmp.Or(exchange, key))
}

// answerOn waits for the broker's answer to earlier commands on a channel. If the refusal
// arrives before the next request is sent, the client reports only a closed channel.
func answerOn(ch *amqp.Channel, refusal <-chan *amqp.Error) error {
	err := ch.Qos(1, 0, false) // answered after the earlier commands
	if errors.Is(err, amqp.ErrClosed) {
		if why := <-refusal; why != nil { // closed when the connection ends
			return why
		}
	}
	return err
}

// lost returns err unless it is the broker's own answer to the request.
func lost(err error) error {
	if err == nil || replyCode(err) != "" {
		return nil
	}
	return err
}

var errName = errors.New("a queue's name has at most 255 bytes")

// checkQueue checks that a queue exists, on a channel of its own, because a missing queue
// ends the channel.
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
