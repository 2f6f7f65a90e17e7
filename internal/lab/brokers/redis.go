package brokers

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis describes a Redis or Valkey server. A topic is a stream, or several streams
// named topic:N. Close closes the client.
func Redis(client *redis.Client) *Broker {
	r := &redisServer{client: client, split: make(map[string]int)}
	return &Broker{
		Name: "redis", Make: r.make, Remove: r.remove, Count: r.count, Read: r.read, Follow: r.follow,
		Publish: r.publish, Lag: r.lag,
		Full: func(ctx context.Context, _ string) (func(context.Context) error, error) {
			limit := func(ctx context.Context, bytes string) error { return client.ConfigSet(ctx, "maxmemory", bytes).Err() }
			// Redis refuses every command that needs memory.
			return func(ctx context.Context) error { return limit(ctx, "0") }, limit(ctx, "1")
		},
		Close: func() { _ = client.Close() },
	}
}

type redisServer struct {
	client *redis.Client

	mu    sync.Mutex
	split map[string]int // number of streams of the topics made here
}

// streams returns the names of a topic's streams.
func (r *redisServer) streams(topic string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.split[topic]
	if n < 2 {
		return []string{topic}
	}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s:%d", topic, i)
	}
	return names
}

func (r *redisServer) make(ctx context.Context, t Topic) error {
	r.mu.Lock()
	r.split[t.Name] = t.Streams
	r.mu.Unlock()
	for _, name := range r.streams(t.Name) { // a stream is created by its first entry or group, and outlives it
		if err := r.client.XGroupCreateMkStream(ctx, name, "make", "0").Err(); err != nil {
			return fmt.Errorf("make the stream %s: %w", name, err)
		}
		if err := r.client.XGroupDestroy(ctx, name, "make").Err(); err != nil {
			return err
		}
	}
	return nil
}

func (r *redisServer) remove(ctx context.Context, topic string) error {
	return r.client.Del(ctx, r.streams(topic)...).Err()
}

func (r *redisServer) count(ctx context.Context, topic string) (n int, err error) {
	for _, name := range r.streams(topic) {
		length, err := r.client.XLen(ctx, name).Result()
		if err != nil {
			return 0, err
		}
		n += int(length)
	}
	return n, nil
}

func (r *redisServer) read(ctx context.Context, topic string, each func(Record)) error {
	for _, name := range r.streams(topic) {
		for from := "-"; ; {
			entries, err := r.client.XRangeN(ctx, name, from, "+", 5000).Result()
			if err != nil {
				return err
			}
			if len(entries) == 0 {
				break
			}
			if from, err = pass(entries, each); err != nil {
				return err
			}
			from = "(" + from
		}
	}
	return nil
}

// pass passes entries to each and returns the last entry's id. An entry without a payload
// is passed with an empty one.
func pass(entries []redis.XMessage, each func(Record)) (last string, err error) {
	for _, e := range entries {
		ms, _, _ := strings.Cut(e.ID, "-")
		at, err := strconv.ParseInt(ms, 10, 64)
		if err != nil {
			return "", fmt.Errorf("an entry has the id %s: %w", e.ID, err)
		}
		payload, _ := e.Values["payload"].(string)
		each(Record{Payload: []byte(payload), Time: time.UnixMilli(at)})
		last = e.ID
	}
	return last, nil
}

// follow reads a topic that has one stream.
func (r *redisServer) follow(ctx context.Context, topic string, n int, each func(Record)) error {
	from := "0"
	for got := 0; got < n; {
		streams, err := r.client.XRead(ctx, &redis.XReadArgs{Streams: []string{topic, from}, Count: 1000, Block: silence}).Result()
		if errors.Is(err, redis.Nil) {
			return silent(got, n)
		}
		if err != nil {
			return err
		}
		got += len(streams[0].Messages)
		if from, err = pass(streams[0].Messages, each); err != nil {
			return err
		}
	}
	return nil
}

// publish spreads keys over the streams by FNV-1a.
func (r *redisServer) publish(ctx context.Context, topic string, page []Message) error {
	streams := r.streams(topic)
	_, err := r.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, m := range page {
			fields := []any{"payload", m.Payload}
			for _, h := range m.Headers {
				fields = append(fields, h[0], h[1])
			}
			hash := fnv.New32a()
			_, _ = hash.Write([]byte(m.Key)) // never fails
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: streams[hash.Sum32()%uint32(len(streams))], Values: fields})
		}
		return nil
	})
	return err
}

// lag counts the entries that the group has not read or not acknowledged.
func (r *redisServer) lag(ctx context.Context, topic, group string) (left int, err error) {
	for _, name := range r.streams(topic) {
		groups, err := r.client.XInfoGroups(ctx, name).Result()
		if err != nil {
			return 0, err
		}
		if len(groups) != 1 || groups[0].Name != group {
			return 0, fmt.Errorf("stream %s has %d groups, want only %s", name, len(groups), group)
		}
		left += int(groups[0].Lag + groups[0].Pending)
	}
	return left, nil
}
