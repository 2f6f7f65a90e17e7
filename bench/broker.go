package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/testserver"
)

// benchBroker is a private broker and how to make, fill and read back a topic
// on it by clients that share no code with the product.
type benchBroker struct {
	name, url string
	pid       int // of its process; 0: it has none
	close     func()
	reset     func(ctx context.Context, topic string) error
	// read passes what stands in the topic now to each, in the order of its log;
	// follow waits until n records have come.
	read   func(ctx context.Context, topic string, each func(payload []byte)) error
	follow func(ctx context.Context, topic string, n int, each func(payload []byte)) error
	// publisher returns a function that sends record i at once and does not
	// wait, and one that waits for all and ends the client.
	publisher func(ctx context.Context, topic string) (publish func(i int), end func(), err error)
}

// cpu is what the broker has used so far.
func (b *benchBroker) cpu() (time.Duration, error) {
	if b.pid == 0 {
		return 0, nil
	}
	return treeCPU(b.pid)
}

func startBroker(ctx context.Context, name string) (*benchBroker, error) {
	switch name {
	case "null":
		return &benchBroker{
			name: name, close: func() {},
			reset: func(context.Context, string) error { return nil },
		}, nil
	case "kafka":
		k, err := testserver.LaunchKafka(ctx, "", testserver.Throughput())
		if err != nil {
			return nil, err
		}
		return &benchBroker{
			name: name, url: k.Addr, pid: k.PID, close: func() { _ = k.Close() },
			reset: func(ctx context.Context, topic string) error { return kafkaReset(ctx, k.Addr, topic) },
			read: func(ctx context.Context, topic string, each func([]byte)) error {
				return kafkaRead(ctx, k.Addr, topic, -1, each)
			},
			follow: func(ctx context.Context, topic string, n int, each func([]byte)) error {
				return kafkaRead(ctx, k.Addr, topic, n, each)
			},
			publisher: func(ctx context.Context, topic string) (func(int), func(), error) {
				return kafkaPublisher(ctx, k.Addr, topic)
			},
		}, nil
	case "nats":
		s, err := testserver.LaunchNATS(ctx, "", testserver.Throughput())
		if err != nil {
			return nil, err
		}
		return &benchBroker{
			name: name, url: s.URL, pid: s.PID, close: func() { _ = s.Close() },
			reset: func(ctx context.Context, topic string) error { return natsReset(ctx, s.URL, topic) },
			read: func(ctx context.Context, topic string, each func([]byte)) error {
				return natsRead(ctx, s.URL, topic, -1, each)
			},
			follow: func(ctx context.Context, topic string, n int, each func([]byte)) error {
				return natsRead(ctx, s.URL, topic, n, each)
			},
			publisher: func(ctx context.Context, topic string) (func(int), func(), error) {
				return natsPublisher(ctx, s.URL, topic)
			},
		}, nil
	}
	switch name {
	case "redis":
		return startRedis(ctx)
	case "rabbitmq":
		return startRabbitMQ(ctx)
	}
	return nil, fmt.Errorf("unknown broker %q: kafka, nats, rabbitmq, redis or null", name)
}

// gate is the independent count: a run that fails it has no numbers.
type gate struct {
	OK         bool   `json:"ok"`
	Delivered  int    `json:"delivered"`
	Lost       int    `json:"lost"`
	Duplicates int    `json:"duplicates"`
	Disorder   int    `json:"out_of_order"`
	Note       string `json:"note,omitempty"`
}

// check reads everything back and counts. A key's messages carry rising
// numbers, so a number that falls below its key's highest for the first time it
// is seen is out of order.
func (b *benchBroker) check(ctx context.Context, topic string, n int) (gate, error) {
	if b.read == nil {
		return gate{OK: true, Delivered: n, Note: "null sink: counted by the relay's child"}, nil
	}
	var (
		g       gate
		seen    = make([]bool, n)
		highest = make([]int, keys)
	)
	for i := range highest {
		highest[i] = -1
	}
	err := b.read(ctx, topic, func(payload []byte) {
		g.Delivered++
		i, err := number(payload)
		switch {
		case err != nil || i >= n:
			g.Note = "a record that nobody wrote"
		case seen[i]:
			g.Duplicates++
		case i < highest[i%keys]:
			g.Disorder++
			seen[i] = true
		default:
			highest[i%keys], seen[i] = i, true
		}
	})
	if err != nil {
		return g, fmt.Errorf("read back: %w", err)
	}
	for _, ok := range seen {
		if !ok {
			g.Lost++
		}
	}
	g.OK = g.Lost == 0 && g.Duplicates == 0 && g.Disorder == 0 && g.Note == ""
	return g, nil
}

// number is what fill wrote at the beginning of the payload.
func number(payload []byte) (int, error) {
	if len(payload) < 16 {
		return 0, fmt.Errorf("payload of %d bytes", len(payload))
	}
	return strconv.Atoi(string(payload[:16]))
}

// openSink opens what the relay's child publishes to.
func openSink(name, url string) (broker.Sink, func(), error) {
	switch name {
	case "null":
		return nullSink{}, func() {}, nil
	case "kafka":
		return kafkaSink(url)
	case "nats":
		return natsSink(url)
	case "rabbitmq":
		return rabbitSink(url)
	case "redis":
		return redisSink(url)
	}
	return nil, nil, fmt.Errorf("unknown broker %q", name)
}

func atoi(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is not a positive number", s)
	}
	return n, nil
}
