package open

import (
	"github.com/postrider/postrider/broker/pubsubbroker"
)

func pubsubKind() kind {
	return kind{
		schemes: []string{"pubsub"}, form: "pubsub://PROJECT", sink: openPubSub, source: openPubSubSource,
		params: "  pubsub://PROJECT   ?prefix=TEXT&endpoint=HOST:PORT&emulator=HOST:PORT&window=N\n",
	}
}

func openPubSub(set *Settings, _ string) (*Publisher, error) {
	router, err := set.Router()
	if err != nil {
		return nil, err
	}
	sink, err := pubsubbroker.Open(set.Broker, &pubsubbroker.SinkOptions{Route: router})
	if err != nil {
		return nil, unusable(set, err)
	}
	return &Publisher{Sink: sink, Close: sink.Close}, nil
}

// Subscription is the name of a consumer's subscription of a topic.
func Subscription(topic, consumer string) string { return topic + "-" + consumer }

func openPubSubSource(set *Settings, consumer, topic string) (*Receiver, error) {
	src, err := pubsubbroker.OpenSource(set.Broker, &pubsubbroker.SourceOptions{Subscription: Subscription(topic, consumer)})
	if err != nil {
		return nil, unusable(set, err)
	}
	return &Receiver{Source: src, Close: src.Close}, nil
}
