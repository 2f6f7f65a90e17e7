package envelope_test

import (
	"testing"

	"github.com/postrider/postrider/envelope"
)

func BenchmarkEncode(b *testing.B) {
	m := full()
	m.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
	m.Payload = []byte(`{"order":1234,"lines":[{"sku":"A-1","quantity":3}]}`)
	for _, f := range envelope.Formats() {
		b.Run(f.String(), func(b *testing.B) {
			var w envelope.Wire
			r := envelope.Route{Topic: m.Topic, Key: m.Key, Format: f}
			b.ReportAllocs()
			for b.Loop() {
				if err := (envelope.Codec{}).Encode(&w, &m, &r, envelope.TopicCarried|envelope.KeyCarried); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
