package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/bench/database"
	"github.com/postrider/postrider/bench/rows"
	"github.com/postrider/postrider/broker"
)

// childProduce measures the limit of publishing: the client produces the relay's records,
// made on the way and not kept in memory.
//
// With the URL of a database it also reads the whole outbox by the cheapest reader and
// discards the rows: the limit of a relay that reads like it and publishes like the client
// on a shared machine.
func childProduce(ctx context.Context, name, brokerURL, topic, count, url string) error {
	n, err := atoi(count)
	if err != nil {
		return err
	}
	copied := make(chan error, 1)
	start := time.Now()
	go func() {
		if url == "" {
			copied <- nil
			return
		}
		_, err := database.ReadAll(ctx, url)
		copied <- err
	}()
	err = errors.Join(produce(ctx, name, brokerURL, topic, n), <-copied)
	if err != nil {
		return err
	}
	fmt.Printf("done %g\n", time.Since(start).Seconds())
	<-ctx.Done()
	return nil
}

// pageOfLane and lanesAtOnce are the relay's values when all lanes have a backlog: the
// messages of a lane per Deliver, and the concurrent lanes.
const (
	lanesAtOnce = 64
	pageOfLane  = 96
)

// childSink publishes the same records through the product's sink, from memory and without
// a database: the lanes of a relay concurrently, each a page at a time.
func childSink(ctx context.Context, name, url, topic, count string) error {
	n, err := atoi(count)
	if err != nil {
		return err
	}
	sink, closeSink, err := openSink(name, url)
	if err != nil {
		return err
	}
	defer closeSink()
	var (
		wg   sync.WaitGroup
		errs = make([]error, lanesAtOnce)
	)
	start := time.Now()
	for lane := range lanesAtOnce {
		wg.Go(func() { errs[lane] = sinkLane(ctx, sink, topic, lane, n) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Printf("done %g\n", time.Since(start).Seconds())
	<-ctx.Done()
	return nil
}

// sinkLane publishes the records of every lanesAtOnce-th key.
func sinkLane(ctx context.Context, sink broker.Sink, topic string, lane, n int) error {
	page := make([]postrider.Message, 0, pageOfLane)
	for at := 0; at < n; at += rows.Keys { // keys take turns
		for i := at + lane; i < min(at+rows.Keys, n); i += lanesAtOnce {
			page = append(page, asRead(topic, i))
			if len(page) < pageOfLane {
				continue
			}
			if err := errors.Join(sink.Deliver(ctx, broker.Batch{Messages: page})...); err != nil {
				return err
			}
			page = page[:0]
		}
	}
	if len(page) == 0 {
		return nil
	}
	return errors.Join(sink.Deliver(ctx, broker.Batch{Messages: page})...)
}

// asRead returns record i as the relay reads it.
func asRead(topic string, i int) postrider.Message {
	return postrider.Message{
		ID: string(rows.ID(nil, i)), Topic: topic, Key: string(rows.Key(nil, i)), Type: "bench.event",
		Payload: rows.Payload(make([]byte, 0, 256), i),
		Time:    time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

func produce(ctx context.Context, name, url, topic string, n int) error {
	switch name {
	case "kafka":
		return kafkaProduce(ctx, url, topic, n)
	case "nats":
		return natsProduce(ctx, url, topic, n)
	case "rabbitmq":
		return rabbitProduce(ctx, url, topic, n)
	case "redis":
		return redisProduce(ctx, url, topic, n)
	case "sqs", "pubsub":
		c, err := cloudClient(ctx, name, url, topic)
		if err != nil {
			return err
		}
		return c.Produce(ctx, n)
	}
	return fmt.Errorf("unknown broker %q", name)
}
