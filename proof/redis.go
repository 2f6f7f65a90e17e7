package main

import (
	"context"
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
