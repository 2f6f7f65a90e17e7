package open

import (
	"github.com/postrider/postrider/broker/natsbroker"
)

func natsKind() kind {
	return kind{
		schemes: []string{"nats"}, form: "nats://HOST:PORT", sink: openNATS, source: openNATSSource,
		params: "  nats://[USER:PASSWORD@]HOST:PORT,...   ?prefix=TEXT&dedup=on|off\n" +
			"      &creds=FILE&nkey=FILE&token-file=FILE&token-env=NAME\n",
	}
}

func openNATS(set *Settings, _ string) (*Publisher, error) {
	router, err := set.Router()
	if err != nil {
		return nil, err
	}
	sink, err := natsbroker.Open(set.Broker, &natsbroker.SinkOptions{Route: router})
	if err != nil {
		return nil, unusable(set, err)
	}
	return &Publisher{Sink: sink, Close: sink.Close}, nil
}

func openNATSSource(set *Settings, consumer, topic string) (*Receiver, error) {
	src, err := natsbroker.OpenSource(set.Broker, &natsbroker.SourceOptions{Stream: topic, Group: consumer})
	if err != nil {
		return nil, unusable(set, err)
	}
	return &Receiver{Source: src, Close: src.Close}, nil
}
