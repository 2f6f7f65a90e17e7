package main

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/testserver"
)

// openRabbitMQ starts a node with a quorum queue, which is on the disk before it
// is confirmed.
func openRabbitMQ(ctx context.Context) (*source, error) {
	s, err := testserver.LaunchRabbitMQ(ctx, "4.0", "", testserver.Throughput(), testserver.Durable())
	if err != nil {
		return nil, err
	}
	r := &rabbit{url: s.URL}
	err = r.with(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(topic, true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": -1})
		return err
	})
	if err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("declare the queue: %w", err)
	}
	return &source{
		relayURL: s.URL, server: s, close: func() { _ = s.Close() },
		count: r.count, read: r.read,
	}, nil
}

// rabbit has a connection for each question: the node comes and goes. A queue
// gives what it holds once, and hands out only so much at a time: what was taken
// is kept here.
type rabbit struct {
	url   string
	taken [][]byte
}

func (r *rabbit) with(fn func(*amqp.Channel) error) error {
	conn, err := amqp.Dial(r.url)
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

func (r *rabbit) count(context.Context) (n int, err error) {
	err = r.with(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(topic, true, false, false, false, nil)
		n = q.Messages
		return err
	})
	return len(r.taken) + n, err
}

func (r *rabbit) read(ctx context.Context, each func([]byte)) error {
	if err := r.with(func(ch *amqp.Channel) error { return r.take(ctx, ch) }); err != nil {
		return err
	}
	for _, payload := range r.taken {
		each(payload)
	}
	return nil
}

// take empties the queue.
func (r *rabbit) take(ctx context.Context, ch *amqp.Channel) error {
	const batch = 1000
	q, err := ch.QueueDeclarePassive(topic, true, false, false, false, nil)
	if err != nil || q.Messages == 0 {
		return err
	}
	if err := ch.Qos(2*batch, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(topic, "", false, true, false, false, nil)
	if err != nil {
		return err
	}
	for left := q.Messages; left > 0; left-- {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return errors.New("the channel was closed while it was read")
			}
			r.taken = append(r.taken, d.Body)
			if left%batch == 1 {
				if err := d.Ack(true); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
