package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/postrider/postrider/bench/clouds"
	"github.com/postrider/postrider/bench/rows"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/awsbroker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/broker/pubsubbroker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/lab/brokers/private"
	"github.com/postrider/postrider/internal/proc"
	"github.com/postrider/postrider/internal/testserver"
)

// partitions is the number of a topic's partitions on Kafka.
const partitions = 8

// benchBroker is a private broker. Clients that share no code with the product prepare,
// fill and read it.
type benchBroker struct{ *brokers.Broker }

// cpu returns the CPU time that the broker has used so far.
func (b *benchBroker) cpu() (time.Duration, error) {
	if b.PID == 0 {
		return 0, nil
	}
	return proc.TreeCPU(b.PID)
}

func startBroker(ctx context.Context, name string) (*benchBroker, error) {
	if name == "null" {
		return &benchBroker{&brokers.Broker{
			Name: name, Close: func() {},
			Make:   func(context.Context, brokers.Topic) error { return nil },
			Remove: func(context.Context, string) error { return nil },
		}}, nil
	}
	if name == "pubsub" {
		return startPubSub(ctx)
	}
	setting := testserver.Throughput()
	if name == "redis" {
		// The usual setting: Redis writes to its append-only file before it replies and
		// syncs the file every second. Rewriting the file is off: by default a rewrite
		// starts whenever the file has doubled, in one run and not in another, and takes
		// half a core.
		setting = testserver.WithConfig("appendfsync everysec", "auto-aof-rewrite-percentage 0")
	}
	b, err := private.Launch(ctx, name, setting)
	if err != nil {
		return nil, err
	}
	return &benchBroker{b}, nil
}

// startPubSub starts Google's emulator without the front that private brokers have, which
// would cost CPU time here.
func startPubSub(ctx context.Context) (*benchBroker, error) {
	s, err := testserver.LaunchPubSub(ctx, "")
	if err != nil {
		return nil, err
	}
	b := brokers.PubSub(s.Addr, private.PubSubProject)
	clients := b.Close
	b.URL, b.Process, b.PID = "pubsub://"+private.PubSubProject+"?emulator="+s.Addr, s, s.PID
	b.Close = func() { clients(); _ = s.Close() }
	return &benchBroker{b}, nil
}

// reset deletes a topic and creates it again.
func (b *benchBroker) reset(ctx context.Context, topic string) error {
	return b.Reset(ctx, brokers.Topic{Name: topic, Partitions: partitions})
}

// publisher returns a function that sends record i at once without waiting, and a function
// that waits for all records and closes the client. The reader misses a failed write.
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
	case "sqs", "pubsub":
		c, err := cloudClient(ctx, b.Name, b.URL, topic)
		if err != nil {
			return nil, nil, err
		}
		publish, end = c.Publisher(ctx)
		return publish, end, nil
	}
	return nil, nil, fmt.Errorf("no client of %s", b.Name)
}

func cloudClient(ctx context.Context, name, url, topic string) (*clouds.Client, error) {
	open := clouds.SQS
	if name == "pubsub" {
		open = clouds.PubSub
	}
	return open(ctx, url, topic, func(i int) (id, key string, payload []byte) {
		return string(rows.ID(nil, i)), string(rows.Key(nil, i)), rows.Payload(make([]byte, 0, 256), i)
	})
}

// gate is the independent count. A run that fails it reports no numbers.
type gate struct {
	OK         bool   `json:"ok"`
	Delivered  int    `json:"delivered"`
	Lost       int    `json:"lost"`
	Duplicates int    `json:"duplicates"`
	Disorder   int    `json:"out_of_order"`
	Note       string `json:"note,omitempty"`
}

// check reads all records back and counts them. A key's messages have rising numbers, so
// a new number below its key's highest is out of order.
func (b *benchBroker) check(ctx context.Context, topic string, n int) (gate, error) {
	if b.Count == nil {
		return gate{OK: true, Delivered: n, Note: "null sink: counted by the relay's child"}, nil
	}
	var (
		g       gate
		seen    = make([]bool, n)
		highest = make([]int, rows.Keys)
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
		i, err := rows.Number(r.Payload)
		switch {
		case err != nil || i >= n:
			g.Note = "the broker has a record that was never written"
		case seen[i]:
			g.Duplicates++
		case i < highest[i%rows.Keys]:
			g.Disorder++
			seen[i] = true
		default:
			highest[i%rows.Keys], seen[i] = i, true
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

// openSink opens the sink of the relay's child.
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
	case "sqs":
		return opened(awsbroker.Open(url, nil))
	case "pubsub":
		return opened(pubsubbroker.Open(url, nil))
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
