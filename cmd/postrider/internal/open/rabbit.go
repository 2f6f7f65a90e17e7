package open

import (
	"github.com/postrider/postrider/broker/rabbitbroker"
)

func rabbitKind() kind {
	return kind{
		schemes: []string{"amqp", "amqps"}, form: "amqp://HOST:PORT", sink: openRabbit, source: openRabbitSource,
		params: "  amqp://[USER:PASSWORD@]HOST:PORT,...[/VHOST]  (amqps:// with TLS)  ?exchange=NAME&routing-key=topic|key&cloudevents-prefix=PREFIX\n" +
			"      &max-message-bytes=N&window=N&connections=N&auth=password|certificate\n",
	}
}

func openRabbit(set *Settings, _ string) (*Publisher, error) {
	router, err := set.Router()
	if err != nil {
		return nil, err
	}
	sink, err := rabbitbroker.Open(set.Broker, &rabbitbroker.SinkOptions{Route: router})
	if err != nil {
		return nil, unusable(set, err)
	}
	return &Publisher{Sink: sink, Close: sink.Close, AdviceIsLoud: true}, nil
}

func openRabbitSource(set *Settings, consumer, topic string) (*Receiver, error) {
	src, err := rabbitbroker.OpenSource(set.Broker, &rabbitbroker.SourceOptions{Queue: topic, Consumer: consumer})
	if err != nil {
		return nil, unusable(set, err)
	}
	return &Receiver{Source: src, Close: src.Close}, nil
}
