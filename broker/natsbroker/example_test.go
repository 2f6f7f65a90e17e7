package natsbroker_test

import (
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/postrider/postrider/broker/natsbroker"
)

func ExampleOpen() {
	sink, err := natsbroker.Open("nats://host1:4222,host2:4222/?prefix=events.", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
	// relay.New(store, sink, nil).Run(ctx)
}

func ExampleOpenSource() {
	source, err := natsbroker.OpenSource("nats://host1:4222", &natsbroker.SourceOptions{Stream: "EVENTS", Group: "shipping"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
	// consumer.New(source, ...).Run(ctx)
}

// A connection of the application, for a sink and a source.
func ExampleNewSink() {
	nc, err := nats.Connect("nats://host1:4222", natsbroker.ClientOptions()...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer nc.Close()
	sink, err := natsbroker.NewSink(nc, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = sink // relay.New(store, sink, nil).Run(ctx)
}

// The connection of a URL, with an option of the application's.
func ExampleNewSource() {
	target, err := natsbroker.ParseURL("nats://host1:4222/?tls=true")
	if err != nil {
		fmt.Println(err)
		return
	}
	nc, err := target.Connect(nats.Name("shipping"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer nc.Close()
	source, err := natsbroker.NewSource(nc, &natsbroker.SourceOptions{Stream: "EVENTS", Group: "shipping"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
}
