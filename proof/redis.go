package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/internal/testserver"
)

// openRedis starts a server with appendfsync always.
func openRedis(ctx context.Context) (*source, error) {
	s, err := testserver.LaunchRedis(ctx, testserver.Redis7, "", testserver.Throughput(), testserver.Durable())
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(&redis.Options{Addr: s.Addr, ReadTimeout: 5 * time.Second})
	return &source{
		relayURL: s.URL, server: s,
		close: func() { _ = client.Close(); _ = s.Close() },
		count: func(ctx context.Context) (int, error) {
			n, err := client.XLen(ctx, topic).Result()
			return int(n), err
		},
		read: func(ctx context.Context, each func([]byte)) error { return readRedis(ctx, client, each) },
	}, nil
}

func readRedis(ctx context.Context, client *redis.Client, each func([]byte)) error {
	from := "-"
	for {
		entries, err := client.XRangeN(ctx, topic, from, "+", 5000).Result()
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, e := range entries {
			payload, _ := e.Values["payload"].(string) // a record without one is nobody's
			each([]byte(payload))
		}
		from = "(" + entries[len(entries)-1].ID
	}
}

// feedRedis starts a server whose topic is in partitions, of which each consumer
// reads some.
func feedRedis(ctx context.Context) (*feed, error) {
	s, err := testserver.LaunchRedis(ctx, testserver.Redis7, "", testserver.Throughput())
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(&redis.Options{Addr: s.Addr, ReadTimeout: 5 * time.Second})
	return &feed{
		url: fmt.Sprintf("%s?partitions=%d", s.URL, partitions), server: s,
		close:   func() { _ = client.Close(); _ = s.Close() },
		publish: func(ctx context.Context, page []record) error { return addRedis(ctx, client, page) },
		left:    func(ctx context.Context) (int, error) { return leftRedis(ctx, client) },
	}, nil
}

// streamOf is the partition of a key, by FNV-1a.
func streamOf(key string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return fmt.Sprintf("%s:%d", topic, h.Sum32()%partitions)
}

func addRedis(ctx context.Context, client *redis.Client, page []record) error {
	_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, r := range page {
			fields := []any{"payload", r.payload()}
			for _, h := range r.headers() {
				fields = append(fields, h[0], h[1])
			}
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: streamOf(r.key), Values: fields})
		}
		return nil
	})
	return err
}

// leftRedis counts what no consumer has read, and what none has acknowledged.
func leftRedis(ctx context.Context, client *redis.Client) (left int, err error) {
	for n := range partitions {
		groups, err := client.XInfoGroups(ctx, fmt.Sprintf("%s:%d", topic, n)).Result()
		if err != nil {
			return 0, err
		}
		if len(groups) != 1 || groups[0].Name != consumerName {
			return 0, errors.New("a stream has no group yet, or another one")
		}
		left += int(groups[0].Lag + groups[0].Pending)
	}
	return left, nil
}
