package main

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// parseKafka reads the URL of a Kafka broker.
func parseKafka(raw string) (kafkabroker.Target, error) {
	target, err := kafkabroker.ParseURL(raw)
	if err != nil {
		return target, exit.Usagef("broker %s cannot be used: %w; write kafka://HOST:PORT,HOST:PORT", redact.Place(raw), err)
	}
	return target, nil
}

func openKafka(set *settings) (*openedSink, error) {
	target, err := parseKafka(set.broker)
	if err != nil {
		return nil, err
	}
	router, err := set.router()
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(target.Client...)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.broker), err)
	}
	to := target.Sink
	to.Route = router
	sink, err := kafkabroker.NewSink(client, &to)
	if err != nil {
		client.Close()
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.broker), err)
	}
	return &openedSink{Sink: sink, close: client.Close}, nil
}
