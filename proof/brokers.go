package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/testserver"
)

// source is a real broker read by its own client.
type source struct {
	relayURL string // what the relay is given
	follow   func(ctx context.Context, each func(payload []byte)) error
	close    func()
}

func openBroker(ctx context.Context, name string) (*source, error) {
	switch name {
	case "kafka":
		return openKafka(ctx)
	case "nats":
		return openNATS(ctx)
	}
	return nil, fmt.Errorf("unknown broker %q: kafka or nats", name)
}

// unlessEnded makes nothing of an error that the end of ctx has caused.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

func openKafka(ctx context.Context) (*source, error) {
	k, err := testserver.LaunchKafka(ctx, "", testserver.Throughput())
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Addr), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		_ = k.Close()
		return nil, err
	}
	closeAll := func() { client.Close(); _ = k.Close() }
	if _, err := kadm.NewClient(client).CreateTopic(ctx, 8, 1, nil, topic); err != nil {
		closeAll()
		return nil, fmt.Errorf("create topic: %w", err)
	}
	follow := func(ctx context.Context, each func([]byte)) error {
		for {
			fetches := client.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				return unlessEnded(ctx, err)
			}
			fetches.EachRecord(func(r *kgo.Record) { each(r.Value) })
		}
	}
	return &source{relayURL: "kafka://" + k.Addr, follow: follow, close: closeAll}, nil
}

func openNATS(ctx context.Context) (*source, error) {
	s, err := testserver.LaunchNATS(ctx, "", testserver.Throughput())
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(s.URL)
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	closeAll := func() { nc.Close(); _ = s.Close() }
	js, err := jetstream.New(nc)
	if err != nil {
		closeAll()
		return nil, err
	}
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage,
	})
	if err != nil {
		closeAll()
		return nil, fmt.Errorf("create stream: %w", err)
	}
	follow := func(ctx context.Context, each func([]byte)) error {
		consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
		if err != nil {
			return err
		}
		it, err := consumer.Messages()
		if err != nil {
			return err
		}
		go func() { <-ctx.Done(); it.Stop() }()
		for {
			m, err := it.Next()
			if err != nil {
				return unlessEnded(ctx, err)
			}
			each(m.Data())
		}
	}
	return &source{relayURL: s.URL, follow: follow, close: closeAll}, nil
}
