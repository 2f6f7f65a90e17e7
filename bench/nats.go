package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/natsbroker"
)

// natsReset makes the stream of the topic anew.
func natsReset(ctx context.Context, url, topic string) error {
	nc, js, err := natsOpen(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := js.DeleteStream(ctx, topic); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage})
	return err
}

func natsOpen(url string) (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4096))
	if err != nil {
		nc.Close()
	}
	return nc, js, err
}

func natsSink(url string) (broker.Sink, func(), error) {
	sink, err := natsbroker.Open(url, nil)
	if err != nil {
		return nil, nil, err
	}
	return sink, sink.Close, nil
}

func natsProduce(ctx context.Context, url, topic string, n int) error {
	nc, js, err := natsOpen(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	for i := range n {
		if _, err := js.PublishMsgAsync(natsRecord(topic, i), jetstream.WithStallWait(time.Minute)); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// natsRecord is what the relay makes of message i.
func natsRecord(topic string, i int) *nats.Msg {
	id := string(appendID(nil, i))
	return &nats.Msg{Subject: topic, Data: appendPayload(make([]byte, 0, 256), i), Header: nats.Header{
		"Nats-Msg-Id":    {id},
		"postrider-id":   {id},
		"postrider-key":  {string(appendKey(nil, i))},
		"postrider-type": {"bench.event"},
		"postrider-time": {"2026-01-01T00:00:00.000000Z"},
	}}
}

// natsPublisher sends each record at once. What fails is missed by the reader.
func natsPublisher(_ context.Context, url, topic string) (func(int), func(), error) {
	nc, js, err := natsOpen(url)
	if err != nil {
		return nil, nil, err
	}
	return func(i int) { _, _ = js.PublishMsgAsync(natsRecord(topic, i)) }, nc.Close, nil
}

func natsRead(ctx context.Context, url, topic string, n int, each func([]byte)) error {
	nc, js, err := natsOpen(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	stream, err := js.Stream(ctx, topic)
	if err != nil {
		return err
	}
	if n < 0 {
		info, err := stream.Info(ctx)
		if err != nil {
			return err
		}
		n = int(info.State.Msgs)
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	it, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer it.Stop()
	for got := range n {
		m, err := it.Next(jetstream.NextMaxWait(30 * time.Second))
		if err != nil {
			return fmt.Errorf("message %d of %d: %w", got+1, n, err)
		}
		each(m.Data())
	}
	return nil
}
