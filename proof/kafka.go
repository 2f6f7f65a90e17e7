package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/testserver"
)

const partitions = 8

// openKafka starts a broker that flushes each batch before it acknowledges it:
// a single one has no replica to rely on.
func openKafka(ctx context.Context) (*source, error) {
	k, err := testserver.LaunchKafka(ctx, "", testserver.Throughput(), testserver.Durable())
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Addr), kgo.RetryTimeout(2*time.Second))
	if err != nil {
		_ = k.Close()
		return nil, err
	}
	closeAll := func() { client.Close(); _ = k.Close() }
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
		closeAll()
		return nil, fmt.Errorf("create topic: %w", err)
	}
	ends := func(ctx context.Context) (map[int32]int64, int, error) {
		listed, err := admin.ListEndOffsets(ctx, topic)
		if err == nil {
			err = listed.Error()
		}
		at, sum := make(map[int32]int64), 0
		listed.Each(func(o kadm.ListedOffset) { at[o.Partition] = o.Offset; sum += int(o.Offset) })
		if err == nil && len(at) != partitions {
			err = fmt.Errorf("%d of %d partitions answer", len(at), partitions)
		}
		return at, sum, err
	}
	return &source{
		relayURL: "kafka://" + k.Addr, server: k, close: closeAll,
		count: func(ctx context.Context) (int, error) { _, n, err := ends(ctx); return n, err },
		read: func(ctx context.Context, each func([]byte)) error {
			end, _, err := ends(ctx)
			if err != nil {
				return err
			}
			return readKafka(ctx, k.Addr, end, each)
		},
	}, nil
}

// readKafka reads all partitions up to the given ends. Without transactions
// offsets have no gaps.
func readKafka(ctx context.Context, addr string, end map[int32]int64, each func([]byte)) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	left := 0
	for _, n := range end {
		left += int(n)
	}
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset < end[r.Partition] {
				left--
				each(r.Value)
			}
		})
	}
	return nil
}
