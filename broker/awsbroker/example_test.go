package awsbroker_test

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/postrider/postrider/broker/awsbroker"
)

func ExampleOpen() {
	sink, err := awsbroker.Open("sqs://eu-west-1?prefix=prod-", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
	// relay.New(store, sink, nil).Run(ctx)
}

func ExampleOpenSource() {
	source, err := awsbroker.OpenSource("sqs://eu-west-1?prefix=prod-", &awsbroker.SourceOptions{Queue: "orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
	// consumer.New(source, ...).Run(ctx)
}

// A client of the application's own.
func ExampleNewSink() {
	client := sqs.NewFromConfig(aws.Config{Region: "eu-west-1"})
	sink, err := awsbroker.NewSink(client, &awsbroker.SinkOptions{Standard: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
	// relay.New(store, sink, nil).Run(ctx)
}

// Topics of SNS by a client of the application's own.
func ExampleNewTopicSink() {
	client := sns.NewFromConfig(aws.Config{Region: "eu-west-1"})
	sink, err := awsbroker.NewTopicSink(client, &awsbroker.SinkOptions{Account: "123456789012"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
	// relay.New(store, sink, nil).Run(ctx)
}

// The configuration of a URL.
func ExampleNewSource() {
	target, err := awsbroker.ParseURL("sqs://eu-west-1?role=arn:aws:iam::123456789012:role/consumer")
	if err != nil {
		fmt.Println(err)
		return
	}
	cfg, err := target.Config(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	source, err := awsbroker.NewSource(sqs.NewFromConfig(cfg), &awsbroker.SourceOptions{Queue: "orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
	// consumer.New(source, ...).Run(ctx)
}
