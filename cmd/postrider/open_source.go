package main

import (
	"strings"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// openedSource is one broker to receive from.
type openedSource struct {
	broker.Source
	close func()
}

// openSource opens the receiving side for the consumer of that name.
func openSource(set *settings, consumer, topic string) (*openedSource, error) {
	scheme, _, _ := strings.Cut(set.broker, ":")
	switch scheme {
	case "kafka":
		return openKafkaSource(set, consumer, topic)
	case "nats":
		return openNATSSource(set, consumer, topic)
	case "amqp", "amqps":
		return openRabbitSource(set, consumer, topic)
	case "http":
		return openHTTPSource(set)
	case "redis", "rediss":
		return openRedisSource(set, consumer, topic)
	}
	return nil, exit.Usagef("broker scheme %s is unknown: use kafka, nats, amqp, amqps, redis or rediss", redact.Word(scheme))
}

func openNATSSource(set *settings, consumer, topic string) (*openedSource, error) {
	nc, _, err := natsbroker.Open(set.broker)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.broker), err)
	}
	src, err := natsbroker.NewSource(nc, natsbroker.SourceOptions{Stream: topic, Durable: consumer})
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &openedSource{Source: src, close: func() { src.Close(); nc.Close() }}, nil
}

func openKafkaSource(set *settings, consumer, topic string) (*openedSource, error) {
	k, err := parseKafka(set.broker)
	if err != nil {
		return nil, err
	}
	src, err := kafkabroker.NewSource(kafkabroker.SourceOptions{
		Client: k.Client, Group: topic + "-" + consumer, Topics: []string{k.Sink.TopicPrefix + topic},
	})
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.broker), err)
	}
	return &openedSource{Source: src, close: src.Close}, nil
}
