package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/internal/testserver"
)

func redisClient(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, MaxRetries: -1, DisableIdentity: true})
}

// startRedis starts a server that writes to its append-only file before it
// answers and syncs it every second: what most run. It does not rewrite that file:
// by default that begins whenever it has doubled, in the middle of one run and not of
// another, and takes half a core for as long as it lasts.
func startRedis(ctx context.Context) (*benchBroker, error) {
	s, err := testserver.LaunchRedis(ctx, testserver.Redis7, "", testserver.WithConfig("appendfsync everysec", "auto-aof-rewrite-percentage 0"))
	if err != nil {
		return nil, err
	}
	return &benchBroker{
		name: "redis", url: s.Addr, pid: s.PID, close: func() { _ = s.Close() },
		reset: func(ctx context.Context, topic string) error { return redisReset(ctx, s.Addr, topic) },
		read: func(ctx context.Context, topic string, each func([]byte)) error {
			return redisRead(ctx, s.Addr, topic, -1, each)
		},
		follow: func(ctx context.Context, topic string, n int, each func([]byte)) error {
			return redisRead(ctx, s.Addr, topic, n, each)
		},
		publisher: func(ctx context.Context, topic string) (func(int), func(), error) {
			return redisPublisher(ctx, s.Addr, topic)
		},
	}, nil
}

func redisReset(ctx context.Context, addr, topic string) error {
	c := redisClient(addr)
	defer c.Close()
	return c.Del(ctx, topic).Err()
}

func redisSink(addr string) (broker.Sink, func(), error) {
	sink, err := redisbroker.Open("redis://"+addr, nil)
	if err != nil {
		return nil, nil, err
	}
	return sink, sink.Close, nil
}

// redisProduce sends pipelines of 500 on eight connections, which was 5 % faster
// than on four or six, or pipelines of 250 or 1,000.
func redisProduce(ctx context.Context, addr, topic string, n int) error {
	const workers, page = 8, 500
	c := redisClient(addr)
	defer c.Close()
	var (
		wg   sync.WaitGroup
		errs = make([]error, workers)
	)
	for w := range workers {
		wg.Go(func() {
			for from := w * page; from < n && errs[w] == nil; from += workers * page {
				pipe := c.Pipeline()
				for i := from; i < min(from+page, n); i++ {
					pipe.XAdd(ctx, redisRecord(topic, i))
				}
				_, errs[w] = pipe.Exec(ctx)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// redisRecord is what the relay makes of message i.
func redisRecord(topic string, i int) *redis.XAddArgs {
	return &redis.XAddArgs{Stream: topic, Values: []any{
		"postrider-id", appendID(nil, i),
		"postrider-type", "bench.event",
		"postrider-key", appendKey(nil, i),
		"postrider-time", "2026-01-01T00:00:00.000000Z",
		"payload", appendPayload(make([]byte, 0, 256), i),
	}}
}

// redisPublisher sends each record at once. What fails is missed by the reader.
func redisPublisher(ctx context.Context, addr, topic string) (func(int), func(), error) {
	c := redisClient(addr)
	work := make(chan int, 1<<16)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range work {
				_ = c.XAdd(ctx, redisRecord(topic, i)).Err()
			}
		})
	}
	return func(i int) { work <- i }, func() { close(work); wg.Wait(); _ = c.Close() }, nil
}

// redisRead passes n entries on, or those that are there now when n is below zero.
func redisRead(ctx context.Context, addr, topic string, n int, each func([]byte)) error {
	c := redisClient(addr)
	defer c.Close()
	if n < 0 {
		length, err := c.XLen(ctx, topic).Result()
		if err != nil {
			return err
		}
		n = int(length)
	}
	from := "0"
	for got := 0; got < n; {
		streams, err := c.XRead(ctx, &redis.XReadArgs{Streams: []string{topic, from}, Count: 1000, Block: 0}).Result()
		if err != nil {
			return fmt.Errorf("entry %d of %d: %w", got+1, n, err)
		}
		for _, e := range streams[0].Messages {
			payload, _ := e.Values["payload"].(string)
			each([]byte(payload))
			from = e.ID
			got++
		}
	}
	return nil
}
