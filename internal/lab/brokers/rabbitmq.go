package brokers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitMQ describes a RabbitMQ node. A topic is a quorum queue of the same name. Each
// operation calls dial, because tests kill and restart the node. AMQP does not count the
// messages in flight: Lag is nil.
func RabbitMQ(dial func() (*amqp.Connection, error)) *Broker {
	r := &rabbit{dial: dial, taken: make(map[string][]Record)}
	return &Broker{
		Name: "rabbitmq", Make: r.make, Remove: r.remove, Count: r.count, Read: r.read, Follow: r.follow, Publish: r.publish,
		Close: func() {},
	}
}

// rabbit keeps the messages that it has taken: a queue delivers each once, and only a
// limited number at a time.
type rabbit struct {
	dial func() (*amqp.Connection, error)

	mu    sync.Mutex
	taken map[string][]Record
}

func (r *rabbit) with(fn func(*amqp.Channel) error) error {
	conn, err := r.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return fn(ch)
}

func (r *rabbit) make(_ context.Context, t Topic) error {
	args := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": -1}
	if t.Single {
		args["x-single-active-consumer"] = true
	}
	err := r.with(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(t.Name, true, false, false, false, args)
		return err
	})
	if err != nil {
		return fmt.Errorf("declare the queue %s: %w", t.Name, err)
	}
	return nil
}

func (r *rabbit) remove(_ context.Context, topic string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.taken, topic)
	return r.with(func(ch *amqp.Channel) error { _, err := ch.QueueDelete(topic, false, false, false); return err })
}

// ready returns the number of messages in the queue that are not in flight.
func ready(ch *amqp.Channel, topic string) (int, error) {
	q, err := ch.QueueDeclarePassive(topic, true, false, false, false, nil)
	return q.Messages, err
}

func (r *rabbit) count(_ context.Context, topic string) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err = r.with(func(ch *amqp.Channel) error { n, err = ready(ch, topic); return err })
	return len(r.taken[topic]) + n, err
}

func (r *rabbit) read(ctx context.Context, topic string, each func(Record)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.with(func(ch *amqp.Channel) error {
		n, err := ready(ch, topic)
		if err != nil {
			return err
		}
		return consume(ctx, ch, topic, n, func(rec Record) { r.taken[topic] = append(r.taken[topic], rec) })
	})
	if err != nil {
		return err
	}
	for _, rec := range r.taken[topic] {
		each(rec)
	}
	return nil
}

func (r *rabbit) follow(ctx context.Context, topic string, n int, each func(Record)) error {
	return r.with(func(ch *amqp.Channel) error { return consume(ctx, ch, topic, n, each) })
}

// consume takes the queue's next n messages and acknowledges them in bulk.
func consume(ctx context.Context, ch *amqp.Channel, topic string, n int, each func(Record)) error {
	const page = 1000
	if n == 0 {
		return nil
	}
	if err := ch.Qos(2*page, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.ConsumeWithContext(ctx, topic, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	for got := range n {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return errors.Join(errors.New("the channel was closed during the read"), ctx.Err())
			}
			each(Record{Payload: d.Body, Time: time.Now()})
			if (got+1)%page == 0 || got+1 == n {
				if err := d.Ack(true); err != nil {
					return err
				}
			}
			quiet.Reset(silence)
		case <-quiet.C:
			return silent(got, n)
		}
	}
	return nil
}

func (r *rabbit) publish(ctx context.Context, topic string, page []Message) error {
	return r.with(func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		confirms := make([]*amqp.DeferredConfirmation, len(page))
		for i, m := range page {
			p := amqp.Publishing{Headers: amqp.Table{}, DeliveryMode: amqp.Persistent, Body: m.Payload}
			for _, h := range m.Headers {
				p.Headers[h[0]] = h[1]
			}
			var err error
			if confirms[i], err = ch.PublishWithDeferredConfirmWithContext(ctx, "", topic, false, false, p); err != nil {
				return err
			}
		}
		for _, c := range confirms {
			if ok, err := c.WaitContext(ctx); err != nil || !ok {
				return errors.Join(err, errUnconfirmed)
			}
		}
		return nil
	})
}
