package pubsubbroker_test

import (
	"context"
	"fmt"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"

	"github.com/postrider/postrider/broker/pubsubbroker"
)

func ExampleOpen() {
	sink, err := pubsubbroker.Open("pubsub://my-project?endpoint=europe-west1-pubsub.googleapis.com:443", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
	// relay.New(store, sink, nil).Run(ctx)
}

func ExampleOpenSource() {
	source, err := pubsubbroker.OpenSource("pubsub://my-project", &pubsubbroker.SourceOptions{Subscription: "orders-shipping"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
	// consumer.New(source, ...).Run(ctx)
}

// A client of the application's.
func ExampleNewSink() {
	client, err := pubsub.NewTopicAdminClient(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	sink, err := pubsubbroker.NewSink(client, &pubsubbroker.SinkOptions{Project: "my-project"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
}

// The client of a URL.
func ExampleNewSource() {
	target, err := pubsubbroker.ParseURL("pubsub://my-project")
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := pubsub.NewSubscriptionAdminClient(context.Background(), target.ClientOptions()...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	source, err := pubsubbroker.NewSource(client, &pubsubbroker.SourceOptions{Project: target.Project, Subscription: "orders-shipping"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
}
