package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
)

const kafkaPartitions = 8

// kafkaReset makes the topic anew.
func kafkaReset(ctx context.Context, addr, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.DeleteTopic(ctx, topic); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
		return err
	}
	for {
		_, err := admin.CreateTopic(ctx, kafkaPartitions, 1, nil, topic)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, kerr.TopicAlreadyExists): // still being deleted
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func kafkaSink(addr string) (broker.Sink, func(), error) {
	sink, err := kafkabroker.Open("kafka://"+addr, nil)
	if err != nil {
		return nil, nil, err
	}
	return sink, sink.Close, nil
}

// kafkaProduce uses the settings a user would choose for throughput and the
// same durability: idempotent, acks of all replicas, 5 ms linger.
func kafkaProduce(ctx context.Context, addr, topic string, n int) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(addr),
		kgo.ProducerLinger(5*time.Millisecond),
		kgo.MaxBufferedRecords(20_000),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	var failed atomic.Pointer[error]
	promise := func(_ *kgo.Record, err error) {
		if err != nil {
			failed.CompareAndSwap(nil, &err)
		}
	}
	for i := range n {
		client.Produce(ctx, kafkaRecord(topic, i), promise)
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// kafkaRecord is what the relay makes of message i. One allocation holds all its
// bytes, as a careful caller would.
func kafkaRecord(topic string, i int) *kgo.Record {
	b := appendPayload(make([]byte, 0, 256+12+36), i)
	b = appendKey(b, i)
	b = appendID(b, i)
	return &kgo.Record{
		Topic: topic, Value: b[:256:256], Key: b[256:268:268],
		Headers: []kgo.RecordHeader{
			{Key: "postrider-id", Value: b[268:]},
			{Key: "postrider-type", Value: []byte("bench.event")},
			{Key: "postrider-time", Value: []byte("2026-01-01T00:00:00.000000Z")},
		},
	}
}

// kafkaPublisher sends each record at once, with the same durability.
func kafkaPublisher(ctx context.Context, addr, topic string) (func(int), func(), error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ProducerLinger(0),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		return nil, nil, err
	}
	return func(i int) { client.Produce(ctx, kafkaRecord(topic, i), nil) }, client.Close, nil
}

// kafkaRead reads n records from the beginning of every partition, or as many
// as there are now when n is negative.
func kafkaRead(ctx context.Context, addr, topic string, n int, each func([]byte)) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(time.Second))
	if err != nil {
		return err
	}
	defer client.Close()
	left := int64(n)
	if n < 0 {
		ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
		if err != nil {
			return err
		}
		left = 0
		ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, fmt.Errorf("%d records did not come within 2 minutes", left))
	defer cancel()
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) { left--; each(r.Value) })
	}
	return nil
}
