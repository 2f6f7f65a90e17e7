package open

import (
	"github.com/postrider/postrider/broker/pubsubbroker"
)

func pubsubKind() kind {
	return kind{
		schemes: []string{"pubsub"}, form: "pubsub://PROJECT", sink: openPubSub,
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
