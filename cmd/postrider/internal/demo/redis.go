package demo

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

type redisBroker struct {
	client  *redis.Client
	streams []string
}

func openRedis(ctx context.Context, raw, topic string) (*redisBroker, error) {
	t, err := redisbroker.ParseURL(raw)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(raw), err)
	}
	t.Client.Protocol, t.Client.DisableIdentity = 2, true
	b := &redisBroker{
		client:  redis.NewClient(t.Client),
		streams: redisbroker.Streams(t.Sink.Prefix+topic, t.Sink.Partitions),
	}
	ctx, cancel := context.WithTimeout(ctx, open.Timeout)
	defer cancel()
	if err := b.client.Ping(ctx).Err(); err != nil {
		_ = b.client.Close()
		if text, _, quotes := strings.Cut(err.Error(), ", with args beginning with:"); quotes { // a server that does not know AUTH repeats the password
			err = errors.New(text)
		}
		return nil, exit.Withf(exit.Unreachable, "the broker %s cannot be reached: %w; check --broker and that the server runs", redact.Place(raw), err)
	}
	return b, nil
}

func (b *redisBroker) close() {
	ctx, cancel := context.WithTimeout(context.Background(), open.Timeout)
	defer cancel()
	_ = b.client.Del(ctx, b.streams...)
	_ = b.client.Close()
}

func (b *redisBroker) published(ctx context.Context) (int, error) {
	n := 0
	for _, stream := range b.streams {
		length, err := b.client.XLen(ctx, stream).Result()
		if err != nil {
			return 0, err
		}
		n += int(length)
	}
	return n, nil
}

func (b *redisBroker) copies(ctx context.Context) (all []copyAt, err error) {
	for _, stream := range b.streams {
		for from := "-"; ; {
			page, err := b.client.XRangeN(ctx, stream, from, "+", 1000).Result()
			if err != nil {
				return nil, err
			}
			for _, e := range page {
				ms, _, _ := strings.Cut(e.ID, "-")
				at, err := strconv.ParseInt(ms, 10, 64)
				if err != nil {
					return nil, fmt.Errorf("an entry of %s has the id %s: %w", stream, e.ID, err)
				}
				payload, _ := e.Values["payload"].(string)
				all = append(all, decodeCopy([]byte(payload), time.UnixMilli(at)))
				from = "(" + e.ID
			}
			if len(page) == 0 {
				break
			}
		}
	}
	return all, nil
}
