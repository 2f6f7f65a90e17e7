package envelope_test

import (
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// Every adapter encodes and decodes with a Codec. Its zero value suits a broker that
// reserves no header names.
func ExampleCodec() {
	var (
		codec envelope.Codec
		wire  envelope.Wire // reused for the next message
	)
	m := postrider.Message{ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: "orders", Key: "o-1", Type: "order.placed", Payload: []byte(`{"item":"book"}`)}
	to := envelope.Route{Topic: "orders", Key: "o-1", Format: envelope.Plain}
	if err := codec.Encode(&wire, &m, &to, envelope.TopicCarried|envelope.KeyCarried); err != nil {
		fmt.Println(err)
		return
	}
	for _, h := range wire.Headers {
		fmt.Printf("%s: %s\n", h.Name, h.Value)
	}

	got, err := codec.Decode(envelope.Record{Topic: "orders", Key: "o-1", Headers: wire.Headers, Payload: wire.Payload, Origin: "kafka:orders/3@1041"})
	fmt.Println(got.ID == m.ID, got.Type, string(got.Payload), err)
	// Output:
	// postrider-id: 01890a5d-ac96-774b-bcce-b302099a8057
	// postrider-type: order.placed
	// true order.placed {"item":"book"} <nil>
}

func ExampleParseGap() {
	missing, err := envelope.ParseGap("3,5-7")
	fmt.Println(missing, err)
	fmt.Println(envelope.FormatGap(missing...))
	// Output:
	// [{3 3} {5 7}] <nil>
	// 3,5-7
}

func ExampleParseFormat() {
	f, err := envelope.ParseFormat("cloudevents")
	fmt.Println(f == envelope.CloudEvents, f.CanRefer(), err)
	// Output: true true <nil>
}
