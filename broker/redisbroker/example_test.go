package redisbroker_test

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/broker/redisbroker"
)

func ExampleOpen() {
	sink, err := redisbroker.Open("redis://relay:secret@host1,host2/?prefix=events:&maxlen=~1000000", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
	// relay.New(store, sink, nil).Run(ctx)
}

func ExampleOpenSource() {
	source, err := redisbroker.OpenSource("redis://host1,host2/?prefix=events:", &redisbroker.SourceOptions{Group: "shipping", Topics: []string{"orders"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
	// consumer.New(source, ...).Run(ctx)
}

// Connections as the application makes them elsewhere.
func ExampleNewSink() {
	client := &redis.Options{Addr: "host1:6379", DB: 3}
	sink, err := redisbroker.NewSink(client, &redisbroker.SinkOptions{Prefix: "events:"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
	// relay.New(store, sink, nil).Run(ctx)
}

// Connections as the application makes them elsewhere, and a topic in four streams.
func ExampleNewSource() {
	client := &redis.Options{Addr: "host1:6379", DB: 3}
	source, err := redisbroker.NewSource(client, &redisbroker.SourceOptions{Group: "shipping", Topics: []string{"orders"}, Partitions: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
	// consumer.New(source, ...).Run(ctx)
}

// A filter guesses which messages are duplicates, for consumer.Options.Filter.
func ExampleOpenFilter() {
	filter, err := redisbroker.OpenFilter("redis://host1", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer filter.Close()
}

// A filter on a server of its own.
func ExampleNewFilter() {
	filter, err := redisbroker.NewFilter(&redis.Options{Addr: "host1:6379"}, &redisbroker.FilterOptions{Expiry: 10 * time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer filter.Close()
}
