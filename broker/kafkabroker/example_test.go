package kafkabroker_test

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/broker/kafkabroker"
)

func ExampleOpen() {
	sink, err := kafkabroker.Open("kafka://host1:9092,host2:9092/?prefix=prod.", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
	// relay.New(store, sink, nil).Run(ctx)
}

func ExampleOpenSource() {
	source, err := kafkabroker.OpenSource("kafka://host1:9092", &kafkabroker.SourceOptions{Group: "shipping", Topics: []string{"orders"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
	// consumer.New(source, ...).Run(ctx)
}

// A client of the application, with options of its own.
func ExampleNewSink() {
	client, err := kgo.NewClient(append(kafkabroker.ClientOptions(), kgo.SeedBrokers("host1:9092"), kgo.Rack("eu-1a"))...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	sink, err := kafkabroker.NewSink(client, &kafkabroker.SinkOptions{Prefix: "prod."})
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = sink // relay.New(store, sink, nil).Run(ctx)
}

// A client of a URL, with options of its own.
func ExampleNewSource() {
	target, err := kafkabroker.ParseURL("kafka://host1:9092/?prefix=prod.")
	if err != nil {
		fmt.Println(err)
		return
	}
	opts := target.Source
	opts.Group, opts.Topics = "shipping", []string{"orders"}
	source, err := kafkabroker.NewSource(append(target.Client, kgo.Rack("eu-1a")), &opts)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
}
