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

// Ping is [broker.Info].Ping: on the connection that messages take, whose
// heartbeats show that the broker lives, so that it costs nothing while there is one.
func (s *Sink) Ping(ctx context.Context) error {
	l := s.enter()
	defer s.leave(l)
	if _, err := s.session(ctx, l); err != nil {
		return unreached(err)
	}
	return nil
}

// Probe is [broker.Info].Probe, on a connection of its own. With an exchange
// the topics are there if it is: its bindings cannot be asked for.
func (s *Sink) Probe(ctx context.Context, topics []string) ([]error, error) {
	c, wire, err := s.dialer.open(ctx)
	if errors.Is(err, amqp.ErrCredentials) {
		// RabbitMQ answers a wrong password by hanging up after 3 s. It also hangs up
		// when it is stopped, but not twice.
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
		if s.opts.Exchange == "" { // its permission is the same for every queue, and each question an error in the broker's log
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

// unreached is Probe's error, and says whether a person must act.
func unreached(err error) error {
	var e *amqp.Error
	limit := errors.As(err, &e) && strings.Contains(e.Reason, "limit") // of connections: others may end theirs
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

// mayPublish looks for the permission to publish to a topic.
func (s *Sink) mayPublish(c *amqp.Connection, topic string) error {
	err := mayPublish(c, s.opts.Exchange, topic)
	if refused := (*amqp.Error)(nil); s.opts.RoutingKey == RoutingByKey && errors.As(err, &refused) && refusedTopic.MatchString(refused.Reason) {
		return nil // which keys there will be is unknown
	}
	return err
}

// mayPublish asks for the permission to publish, on a channel of its own: RabbitMQ looks at
// that of the exchange first and then at the properties, of which two are wrong. So
// nothing is published either way. A topic permission is looked at before the
// properties up to RabbitMQ 3, and behind them from 4 on.
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

// answerOn waits for what the broker says of what was sent on a channel before. The
// client says only that the channel is closed when the refusal is quicker than the question.
func answerOn(ch *amqp.Channel, refusal <-chan *amqp.Error) error {
	err := ch.Qos(1, 0, false) // it is answered behind the other
	if errors.Is(err, amqp.ErrClosed) {
		if why := <-refusal; why != nil { // closed when the connection ends
			return why
		}
	}
	return err
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
