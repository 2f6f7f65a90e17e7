package kafkabroker_test

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/golden"
	"github.com/postrider/postrider/internal/testserver"
)

// TestWireIsGolden: an independent client sees the records of the golden files, byte for
// byte.
func TestWireIsGolden(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	for _, f := range envelope.Formats() {
		t.Run(f.String(), func(t *testing.T) {
			topic := "golden" + rand.Text()
			create(t, addr, topic, 1)
			client, err := kgo.NewClient(append(kafkabroker.ClientOptions(), kgo.SeedBrokers(addr))...)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			sink, err := kafkabroker.NewSink(client, &kafkabroker.SinkOptions{Timeout: time.Minute, Route: golden.Router(topic, f)})
			if err != nil {
				t.Fatal(err)
			}
			msgs := append(golden.Messages(), postrider.Message{ID: golden.ID, Topic: "empty", Type: "t"})
			for _, m := range msgs {
				if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}}); errs != nil {
					t.Fatal(errs)
				}
			}
			var texts []string
			for i, r := range read(t, []string{addr}, topic, len(msgs)) {
				if i == len(msgs)-1 {
					// Neither payload nor key: an empty value, since null would delete, and no
					// key at all, as a consumer of Debezium's router knows it.
					framed := f == envelope.CloudEventsStructured || f == envelope.Confluent
					if r.Key != nil || !framed && (r.Value == nil || len(r.Value) > 0) {
						t.Errorf("an empty message has key %q and value %q (null: %v)", r.Key, r.Value, r.Value == nil)
					}
					continue
				}
				if string(r.Key) != msgs[i].Key {
					t.Errorf("key %q, want %q", r.Key, msgs[i].Key)
				}
				texts = append(texts, golden.Text(headers(r), r.Value))
			}
			if err := golden.Compare("kafka", f, texts...); err != nil {
				t.Error(err)
			}
		})
	}
}
