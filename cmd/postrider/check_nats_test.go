package main

import (
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

// A preview shows the Nats-Msg-Id that the relay sends: without --pipe that of the pipe main.
func TestCheckShowsThePipeInTheMessageID(t *testing.T) {
	for pipe, want := range map[string]string{"": "main/orders/", "search": "search/orders/"} {
		sink, err := openSink(&settings{broker: "nats://127.0.0.1:1", pipe: pipe, format: "plain"})
		if err != nil {
			t.Fatal(err)
		}
		defer sink.close()
		m := postrider.JSON("orders", "k", "order.placed", 1)
		m.ID = "01a2043a-34c4-70fb-81a8-dc4524a4c9b9"
		p, err := sink.Sink.(broker.Previewer).Preview(&m)
		var id string
		for _, h := range p.Headers {
			if h.Name == "Nats-Msg-Id" {
				id = string(h.Value)
			}
		}
		if !strings.HasPrefix(id, want) {
			t.Errorf("pipe %q: Nats-Msg-Id is %q, want it to begin with %s (%v)", pipe, id, want, err)
		}
	}
}
