package main

import (
	"sync"

	"github.com/redis/go-redis/v9/logging"

	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// quietRedis keeps the client from printing to stderr what its errors say anyway.
var quietRedis = sync.OnceFunc(logging.Disable)

func openRedis(set *settings) (*openedSink, error) {
	quietRedis()
	router, err := set.router()
	if err != nil {
		return nil, err
	}
	sink, err := redisbroker.Open(set.broker, &redisbroker.SinkOptions{Route: router})
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.broker), err)
	}
	return &openedSink{Sink: sink, close: sink.Close}, nil
}

func openRedisSource(set *settings, consumer, topic string) (*openedSource, error) {
	quietRedis()
	src, err := redisbroker.OpenSource(set.broker, topic, redisbroker.SourceOptions{Group: consumer})
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.broker), err)
	}
	return &openedSource{Source: src, close: src.Close}, nil
}
