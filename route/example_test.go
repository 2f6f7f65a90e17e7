package route_test

import (
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/route"
)

func ExampleNew() {
	table, err := route.New([]route.Rule{
		{Match: route.Match{Topic: "billing.*"}, Topic: "finance.{topic}", Format: envelope.CloudEvents},
		{Topic: "{topic}"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, topic := range []string{"billing.invoices", "orders"} {
		r, err := table.Route(&postrider.Message{Topic: topic, Key: "o-1"})
		fmt.Println(topic, "->", r.Topic, r.Key, r.Format, err)
	}
	// Output:
	// billing.invoices -> finance.billing.invoices o-1 cloudevents <nil>
	// orders -> orders o-1 plain <nil>
}

// A Door refuses, before it is written, a message that the relay could not send.
func ExampleDoor() {
	table, err := route.New([]route.Rule{{Topic: "events.{type}"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	door := &route.Door{Route: table.Route, Info: broker.Info{Name: "kafka", MaxTopicBytes: 249}}
	ob := outbox.New(dialect.Postgres, &outbox.Options{Door: door})
	_ = ob

	err = door.Check(&postrider.Message{Topic: "orders"}) // it has no type
	fmt.Println(err != nil)
	// Output: true
}
