package open

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

func kafkaKind() kind {
	return kind{
		schemes: []string{"kafka"}, form: "kafka://HOST:PORT,...", sink: openKafka, source: openKafkaSource,
		params: "  kafka://[USER:PASSWORD@]HOST:PORT,...  ?sasl=plain|scram-sha-256|scram-sha-512\n" +
			"      &compression=none|gzip|snappy|lz4|zstd&topic-prefix=TEXT&max-message-bytes=N\n" +
			"      &transactional-id=ID (one transaction per call; this relay's own id, the same after a restart)\n",
	}
}

// ParseKafka reads the URL of a Kafka broker.
func ParseKafka(raw string) (kafkabroker.Target, error) {
	target, err := kafkabroker.ParseURL(raw)
	if err != nil {
		return target, exit.Usagef("broker %s cannot be used: %w; write kafka://HOST:PORT,HOST:PORT", redact.Place(raw), err)
	}
	return target, nil
}

func openKafka(set *Settings, _ string) (*Publisher, error) {
	target, err := ParseKafka(set.Broker)
	if err != nil {
		return nil, err
	}
	router, err := set.Router()
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(target.Client...)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.Broker), err)
	}
	to := target.Sink
	to.Route = router
	sink, err := kafkabroker.NewSink(client, &to)
	if err != nil {
		client.Close()
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.Broker), err)
	}
	return &Publisher{Sink: sink, Close: client.Close}, nil
}

func openKafkaSource(set *Settings, consumer, topic string) (*Receiver, error) {
	k, err := ParseKafka(set.Broker)
	if err != nil {
		return nil, err
	}
	src, err := kafkabroker.NewSource(kafkabroker.SourceOptions{
		Client: k.Client, Group: topic + "-" + consumer, Topics: []string{k.Sink.TopicPrefix + topic},
	})
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.Broker), err)
	}
	return &Receiver{Source: src, Close: src.Close}, nil
}
