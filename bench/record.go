package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

// childProduce measures the limit of publishing: the client produces the relay's records,
// made on the way and not kept in memory.
//
// With the URL of a database it also reads the whole outbox with COPY and discards the
// rows: the limit of a relay that reads like COPY and publishes like the client on a
// shared machine.
func childProduce(ctx context.Context, name, url, topic, count, pgURL string) error {
	n, err := atoi(count)
	if err != nil {
		return err
	}
	copied := make(chan error, 1)
	start := time.Now()
	go func() { copied <- copyBeside(ctx, pgURL) }()
	err = errors.Join(produce(ctx, name, url, topic, n), <-copied)
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
	for at := 0; at < n; at += keys { // keys take turns
		for i := at + lane; i < min(at+keys, n); i += lanesAtOnce {
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
		ID: string(appendID(nil, i)), Topic: topic, Key: string(appendKey(nil, i)), Type: "bench.event",
		Payload: appendPayload(make([]byte, 0, 256), i),
		Time:    time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

func copyBeside(ctx context.Context, pgURL string) error {
	if pgURL == "" {
		return nil
	}
	pool, err := pgxpool.New(ctx, pgURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = copyOut(ctx, pool)
	return err
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

// filler makes payloads half as compressible as random bytes, as fill does.
const filler = "9e107d9d372bb6826bd81d3542a419d6c0fee9be9a1f5a4d1f0c2a3b4c5d6e7f" +
	"e4d909c290d0fb1ca068ffaddf22cbd08c7dd922ad47494fc02c388e12c00eac" +
	"d41d8cd98f00b204e9800998ecf8427e5d41402abc4b2a76b9719d911017c592" +
	"7d793037a0760186574b0282f2f435e76cd3556deb0da54bca060b4c39479839"

// appendPayload appends the 256 bytes of record i.
func appendPayload(b []byte, i int) []byte {
	b = appendPadded(b, i, 16)
	return append(b, filler[i%16:240+i%16]...)
}

func appendKey(b []byte, i int) []byte { return appendPadded(append(b, "key-"...), i%keys, 8) }

// appendID appends the text of a UUID; only its length and uniqueness matter.
func appendID(b []byte, i int) []byte {
	b = append(b, "01890a5d-ac96-774b-bcce-"...)
	return appendPadded(b, i, 12)
}

func appendPadded(b []byte, i, width int) []byte {
	var digits [20]byte
	d := strconv.AppendInt(digits[:0], int64(i), 10)
	for range width - len(d) {
		b = append(b, '0')
	}
	return append(b, d...)
}
