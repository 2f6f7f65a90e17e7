package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/testserver"
)

// openNATS starts a server with sync_interval always.
func openNATS(ctx context.Context) (*source, error) {
	s, err := testserver.LaunchNATS(ctx, "", testserver.Throughput(), testserver.Durable())
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(s.URL, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
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
	last := func(ctx context.Context) (uint64, int, error) {
		info, err := stream.Info(ctx)
		if err != nil {
			return 0, 0, err
		}
		return info.State.LastSeq, int(info.State.Msgs), nil
	}
	return &source{
		relayURL: s.URL, server: s, close: closeAll,
		count: func(ctx context.Context) (int, error) { _, n, err := last(ctx); return n, err },
		read: func(ctx context.Context, each func([]byte)) error {
			end, n, err := last(ctx)
			if err != nil || n == 0 {
				return err
			}
			return readNATS(ctx, stream, end, each)
		},
	}, nil
}

func readNATS(ctx context.Context, stream jetstream.Stream, end uint64, each func([]byte)) error {
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	it, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer it.Stop()
	for {
		m, err := it.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		each(m.Data())
		if meta.Sequence.Stream >= end {
			return nil
		}
	}
}
