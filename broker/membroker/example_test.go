package membroker_test

import (
	"context"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
)

// A broker for tests: what a sink delivers, a source of any consumer receives.
func ExampleNew() {
	ctx := context.Background()
	bus := membroker.New(nil)

	batch := broker.Batch{Messages: []postrider.Message{postrider.JSON("orders", "o-1", "order.placed", "book")}}
	for _, err := range bus.Sink().Deliver(ctx, batch) { // one answer per message
		if err != nil {
			fmt.Println(err)
			return
		}
	}

	src := bus.Source("billing", "orders")
	defer src.Close()
	got, err := src.Receive(ctx, 10)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range got {
		fmt.Println(d.Message.Type, string(d.Message.Payload))
		if err := src.Settle(ctx, []broker.Verdict{{Delivery: d, Ack: true}}); err != nil {
			fmt.Println(err)
		}
	}
	// Output: order.placed "book"
}
