package main

import (
	"context"
	"errors"
	"sync"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	"github.com/postrider/postrider/broker/pubsubbroker"
)

// pubsubRequests are under way at once: as many as the sink has.
const pubsubRequests = 64

// pubsubOpen returns the client and the topic's full name.
func pubsubOpen(ctx context.Context, url, topic string) (*pubsub.TopicAdminClient, string, error) {
	t, err := pubsubbroker.ParseURL(url)
	if err != nil {
		return nil, "", err
	}
	client, err := pubsub.NewTopicAdminClient(ctx, t.ClientOptions()...)
	return client, "projects/" + t.Project + "/topics/" + topic, err
}

// pubsubProduce sends requests of one ordering key side by side, as the sink does. The
// records of W1 have a key each, so a request has one: Google's publisher would bundle
// no more, and waits for the bundle.
func pubsubProduce(ctx context.Context, url, topic string, n int) error {
	client, name, err := pubsubOpen(ctx, url, topic)
	if err != nil {
		return err
	}
	defer client.Close()
	var (
		wg   sync.WaitGroup
		errs = make([]error, pubsubRequests)
	)
	for w := range pubsubRequests {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil; i += pubsubRequests {
				_, errs[w] = client.Publish(ctx, pubsubRecord(name, i))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// pubsubRecord returns the relay's request for message i.
func pubsubRecord(topic string, i int) *pubsubpb.PublishRequest {
	return &pubsubpb.PublishRequest{Topic: topic, Messages: []*pubsubpb.PubsubMessage{{
		Data: appendPayload(make([]byte, 0, 256), i), OrderingKey: string(appendKey(nil, i)),
		Attributes: map[string]string{
			"postrider-id": string(appendID(nil, i)), "postrider-type": "bench.event", "postrider-topic": "bench", "postrider-time": "2026-01-01T00:00:00.000000Z",
		},
	}}}
}

// pubsubPublisher sends each record at once.
func pubsubPublisher(ctx context.Context, url, topic string) (func(int), func(), error) {
	client, name, err := pubsubOpen(ctx, url, topic)
	if err != nil {
		return nil, nil, err
	}
	publish, end := side(pubsubRequests, func(i int) { _, _ = client.Publish(ctx, pubsubRecord(name, i)) })
	return publish, func() { end(); _ = client.Close() }, nil
}
