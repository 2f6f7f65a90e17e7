package promises

import (
	"context"
	"testing"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/awsbroker"
	"github.com/postrider/postrider/broker/pubsubbroker"
	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/lab/brokers/private"
)

// TestOneConstantKeyOnClouds is the scene "one constant key" of TestBroker for queue
// services: the order of one group, or ordering key, is total through failures of messages
// and of the service.
//
// Promises: O
func TestOneConstantKeyOnClouds(t *testing.T) {
	aws := func(t *testing.T, url string) broker.Sink {
		sink, err := awsbroker.Open(url, nil)
		return opened(t, sink, err)
	}
	pubsub := func(t *testing.T, url string) broker.Sink {
		sink, err := pubsubbroker.Open(url, nil)
		return opened(t, sink, err)
	}
	launch := func(name string) func(context.Context) (*brokers.Broker, error) {
		return func(ctx context.Context) (*brokers.Broker, error) { return private.Launch(ctx, name) }
	}
	for _, test := range []struct {
		name   string
		launch func(context.Context) (*brokers.Broker, error)
		open   func(*testing.T, string) broker.Sink
	}{
		{"sqs", launch("sqs"), aws},
		{"sns", private.LaunchSNS, aws},
		{"pubsub", launch("pubsub"), pubsub},
	} {
		if test.name != "sns" && scale() == 1 {
			continue // in the matrix
		}
		t.Run(test.name, func(t *testing.T) {
			b, err := test.launch(t.Context())
			s := (&server{Broker: described(t, b, err)}).at(test.open)
			r := newRig(t, "18")
			s.make(t, r.topic, 0)
			brokerOneKey(r, s)
		})
	}
}
