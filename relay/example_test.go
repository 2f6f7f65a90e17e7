package relay_test

import (
	"context"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/memstore"
)

// A relay with a store and a broker in memory. A service uses pgstore and kafkabroker, for
// example.
func ExampleNew() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	st, bus := memstore.New(nil), membroker.New(nil)
	if err := st.Enqueue(ctx, postrider.JSON("orders", "o-1", "order.placed", "book")); err != nil {
		fmt.Println(err)
		return
	}

	r := relay.New(st, bus.Sink(), &relay.Options{
		Observer: &relay.Observer{Settled: func(relay.SettledInfo) { stop() }},
	})
	if err := r.Run(ctx); err != nil { // it returns when ctx ends
		fmt.Println(err)
		return
	}
	for _, e := range bus.Log("orders") {
		fmt.Println(e.Message.Topic, e.Message.Key, string(e.Message.Payload))
	}
	// Output: orders o-1 "book"
}
