package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/bench/rows"
)

func rabbitOpen(url string) (*amqp.Connection, *amqp.Channel, error) {
	c, err := amqp.Dial(url)
	if err != nil {
		return nil, nil, err
	}
	ch, err := c.Channel()
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return c, ch, nil
}

// rabbitProduce publishes over four connections with 1024 unconfirmed messages each, the
// fastest of 1, 2 and 4 connections with 64 to 1024 messages.
func rabbitProduce(_ context.Context, url, topic string, n int) error {
	const connections, window = 4, 1024
	errs := make([]error, connections)
	var wg sync.WaitGroup
	for c := range connections {
		wg.Go(func() { errs[c] = rabbitShare(url, topic, c, connections, window, n) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func rabbitShare(url, topic string, first, step, window, n int) error {
	c, ch, err := rabbitOpen(url)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := ch.Confirm(false); err != nil {
		return err
	}
	var wire []*amqp.DeferredConfirmation
	for i := first; i < n; i += step {
		if len(wire) == window {
			if !wire[0].Wait() {
				return fmt.Errorf("message %d was not confirmed", i-window*step)
			}
			wire = wire[1:]
		}
		d, err := ch.PublishWithDeferredConfirm("", topic, true, false, rabbitRecord(i))
		if err != nil {
			return err
		}
		wire = append(wire, d)
	}
	for _, d := range wire {
		if !d.Wait() {
			return errors.New("a message was not confirmed")
		}
	}
	return nil
}

// rabbitRecord returns the relay's record of message i.
func rabbitRecord(i int) amqp.Publishing {
	id := string(rows.ID(nil, i))
	return amqp.Publishing{
		DeliveryMode: amqp.Persistent, MessageId: id, Type: "bench.event",
		Body: rows.Payload(make([]byte, 0, 256), i),
		Headers: amqp.Table{
			"postrider-id": id, "postrider-key": string(rows.Key(nil, i)), "postrider-type": "bench.event",
			"postrider-time": "2026-01-01T00:00:00.000000Z",
		},
	}
}

// rabbitPublisher sends each record at once.
func rabbitPublisher(url, topic string) (func(int), func(), error) {
	c, ch, err := rabbitOpen(url)
	if err != nil {
		return nil, nil, err
	}
	return func(i int) { _ = ch.Publish("", topic, true, false, rabbitRecord(i)) }, func() { _ = c.Close() }, nil
}
