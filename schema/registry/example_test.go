package registry_test

import (
	"fmt"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/schema/registry"
)

func ExampleOpen() {
	table, err := route.New([]route.Rule{{Format: envelope.Confluent, Strategy: route.TopicRecordName}})
	if err != nil {
		panic(err)
	}
	reg, err := registry.Open("https://registry.internal:8081", nil)
	if err != nil {
		panic(err)
	}
	defer reg.Close()
	broker := membroker.New(&membroker.Options{Route: reg.Router(table.Route)})
	sink := reg.Sink(broker.Sink()) // for relay.New, with table.Route as relay.Options.Route
	fmt.Println(sink.Info().Name)
	// Output: memory
}
