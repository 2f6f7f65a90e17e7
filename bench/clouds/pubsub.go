package clouds

import (
	"context"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	"github.com/postrider/postrider/broker/pubsubbroker"
)

// PubSub returns a client of a topic. A request has one ordering key, and the records of
// W1 have a key each: Google's publisher would bundle no more, and waits for its bundles.
func PubSub(ctx context.Context, url, topic string, record Record) (*Client, error) {
	t, err := pubsubbroker.ParseURL(url)
	if err != nil {
		return nil, err
	}
	client, err := pubsub.NewTopicAdminClient(ctx, t.ClientOptions()...)
	if err != nil {
		return nil, err
	}
	name := "projects/" + t.Project + "/topics/" + topic
	send := func(ctx context.Context, i, _ int) error {
		id, key, payload := record(i)
		_, err := client.Publish(ctx, &pubsubpb.PublishRequest{Topic: name, Messages: []*pubsubpb.PubsubMessage{{
			Data: payload, OrderingKey: key,
			Attributes: map[string]string{"postrider-id": id, "postrider-type": kind, "postrider-topic": topic, "postrider-time": when},
		}}})
		return err
	}
	return &Client{requests: 64, batch: 1, send: send, close: func() { _ = client.Close() }}, nil
}
