package rabbitbroker_test

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/broker/rabbitbroker"
)

func ExampleOpen() {
	sink, err := rabbitbroker.Open("amqp://relay:secret@host1,host2/shop?exchange=events", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
	// relay.New(store, sink, nil).Run(ctx)
}

func ExampleOpenSource() {
	source, err := rabbitbroker.OpenSource("amqp://host1/shop", &rabbitbroker.SourceOptions{Queue: "orders", Consumer: "shipping"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
	// consumer.New(source, ...).Run(ctx)
}

// The application supplies the password at each new connection.
func ExampleNewSink() {
	server := rabbitbroker.Server{
		Hosts: []string{"host1:5672", "host2:5672"}, Vhost: "shop", User: "relay",
		Password: func(context.Context) (string, error) { return "from a vault", nil },
	}
	sink, err := rabbitbroker.NewSink(server, &rabbitbroker.SinkOptions{Exchange: "events"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
	// relay.New(store, sink, nil).Run(ctx)
}

// The server of a URL.
func ExampleNewSource() {
	target, err := rabbitbroker.ParseURL("amqps://host1/shop?tls-ca=ca.pem")
	if err != nil {
		fmt.Println(err)
		return
	}
	source, err := rabbitbroker.NewSource(target.Server, &rabbitbroker.SourceOptions{Queue: "orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
	// consumer.New(source, ...).Run(ctx)
}
