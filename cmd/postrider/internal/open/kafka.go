package open

import (
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

func kafkaKind() kind {
	return kind{
		schemes: []string{"kafka"}, form: "kafka://HOST:PORT,...", sink: openKafka, source: openKafkaSource,
		params: "  kafka://[USER:PASSWORD@]HOST:PORT,...  ?sasl=plain|scram-sha-256|scram-sha-512\n" +
			"      &compression=none|gzip|snappy|lz4|zstd&prefix=TEXT&max-message-bytes=N\n" +
			"      &transactional-id=ID (one transaction per call; this relay's own id, the same after a restart)\n",
	}
}

func openKafka(set *Settings, _ string) (*Publisher, error) {
	router, err := set.Router()
	if err != nil {
		return nil, err
	}
	sink, err := kafkabroker.Open(set.Broker, &kafkabroker.SinkOptions{Route: router})
	if err != nil {
		return nil, unusable(set, err)
	}
	return &Publisher{Sink: sink, Close: sink.Close}, nil
}

func openKafkaSource(set *Settings, consumer, topic string) (*Receiver, error) {
	src, err := kafkabroker.OpenSource(set.Broker, &kafkabroker.SourceOptions{Group: topic + "-" + consumer, Topics: []string{topic}})
	if err != nil {
		return nil, unusable(set, err)
	}
	return &Receiver{Source: src, Close: src.Close}, nil
}

// unusable is the error of a broker's URL that its adapter rejects.
func unusable(set *Settings, err error) error {
	return exit.Usagef("broker %s cannot be used: %w", redact.Place(set.Broker), err)
}
