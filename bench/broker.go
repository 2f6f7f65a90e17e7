package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/lab/brokers/private"
	"github.com/postrider/postrider/internal/testserver"
)

// partitions of a topic on Kafka.
const partitions = 8

// benchBroker is a private broker, which clients that share no code with the product
// make ready, fill and read back.
type benchBroker struct{ *brokers.Broker }

// cpu is what the broker has used so far.
func (b *benchBroker) cpu() (time.Duration, error) {
	if b.PID == 0 {
		return 0, nil
	}
	return treeCPU(b.PID)
}

func startBroker(ctx context.Context, name string) (*benchBroker, error) {
	if name == "null" {
		return &benchBroker{&brokers.Broker{
			Name: name, Close: func() {},
			Make:   func(context.Context, brokers.Topic) error { return nil },
			Remove: func(context.Context, string) error { return nil },
		}}, nil
	}
	setting := testserver.Throughput()
	if name == "redis" {
		// It writes to its append-only file before it answers and syncs it every second:
		// what most run. It does not rewrite that file: by default that begins whenever it
		// has doubled, in the middle of one run and not of another, and takes half a core
		// for as long as it lasts.
		setting = testserver.WithConfig("appendfsync everysec", "auto-aof-rewrite-percentage 0")
	}
	b, err := private.Launch(ctx, name, setting)
	if err != nil {
		return nil, err
	}
	return &benchBroker{b}, nil
}

// reset deletes a topic and creates it again.
func (b *benchBroker) reset(ctx context.Context, topic string) error {
	return b.Reset(ctx, brokers.Topic{Name: topic, Partitions: partitions})
}

// publisher returns a function that sends record i at once and does not wait, and one
// that waits for all and ends the client. The reader misses a message whose write failed.
func (b *benchBroker) publisher(ctx context.Context, topic string) (publish func(i int), end func(), err error) {
	switch b.Name {
	case "kafka":
		return kafkaPublisher(ctx, b.URL, topic)
	case "nats":
		return natsPublisher(b.URL, topic)
	case "rabbitmq":
		return rabbitPublisher(b.URL, topic)
	case "redis":
		return redisPublisher(ctx, b.URL, topic)
	}
	return nil, nil, fmt.Errorf("no client of %s", b.Name)
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
	if b.Count == nil {
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
	held, err := b.Count(ctx, topic)
	if err != nil {
		return g, fmt.Errorf("count: %w", err)
	}
	err = b.Follow(ctx, topic, held, func(r brokers.Record) {
		g.Delivered++
		i, err := number(r.Payload)
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
		return opened(kafkabroker.Open(url, nil))
	case "nats":
		return opened(natsbroker.Open(url, nil))
	case "rabbitmq":
		return opened(rabbitbroker.Open(url, nil))
	case "redis":
		return opened(redisbroker.Open(url, nil))
	}
	return nil, nil, fmt.Errorf("unknown broker %q", name)
}

func opened[S interface {
	broker.Sink
	Close()
}](sink S, err error,
) (broker.Sink, func(), error) {
	if err != nil {
		return nil, nil, err
	}
	return sink, sink.Close, nil
}

func atoi(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is not a positive number", s)
	}
	return n, nil
}
