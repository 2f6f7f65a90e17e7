package main

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/bench/rows"
)

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

// natsRecord returns the relay's record of message i.
func natsRecord(topic string, i int) *nats.Msg {
	id := string(rows.ID(nil, i))
	return &nats.Msg{Subject: topic, Data: rows.Payload(make([]byte, 0, 256), i), Header: nats.Header{
		"Nats-Msg-Id":    {id},
		"postrider-id":   {id},
		"postrider-key":  {string(rows.Key(nil, i))},
		"postrider-type": {"bench.event"},
		"postrider-time": {"2026-01-01T00:00:00.000000Z"},
	}}
}

// natsPublisher sends each record at once.
func natsPublisher(url, topic string) (func(int), func(), error) {
	nc, js, err := natsOpen(url)
	if err != nil {
		return nil, nil, err
	}
	return func(i int) { _, _ = js.PublishMsgAsync(natsRecord(topic, i)) }, nc.Close, nil
}
