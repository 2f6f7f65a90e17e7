package main

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/bench/rows"
)

func kafkaAt(url string) kgo.Opt { return kgo.SeedBrokers(strings.TrimPrefix(url, "kafka://")) }

// kafkaProduce uses a user's settings for throughput with the same durability:
// idempotent, acks of all replicas, 5 ms linger.
func kafkaProduce(ctx context.Context, url, topic string, n int) error {
	client, err := kgo.NewClient(
		kafkaAt(url),
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

// kafkaRecord returns the relay's record of message i. Like a careful caller it allocates
// all bytes at once.
func kafkaRecord(topic string, i int) *kgo.Record {
	b := rows.Payload(make([]byte, 0, 256+12+36), i)
	b = rows.Key(b, i)
	b = rows.ID(b, i)
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
func kafkaPublisher(ctx context.Context, url, topic string) (func(int), func(), error) {
	client, err := kgo.NewClient(kafkaAt(url), kgo.ProducerLinger(0),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		return nil, nil, err
	}
	return func(i int) { client.Produce(ctx, kafkaRecord(topic, i), nil) }, client.Close, nil
}
