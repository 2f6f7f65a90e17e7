package interop

import (
	"crypto/rand"
	"fmt"
	"maps"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/testserver"
)

// TestNATSJava: the official Java client, which ends its connection over a header that
// is not ASCII, reads every message; what it sees decodes to what was sent.
func TestNATSJava(t *testing.T) {
	reader := java(t, "NatsReader.java")
	server := testserver.StartNATS(t)
	nc, err := nats.Connect(server.URL, natsbroker.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, format := range []envelope.Format{envelope.Plain, envelope.CloudEvents, envelope.CloudEventsStructured} {
		t.Run(format.String(), func(t *testing.T) {
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			topic := "java" + rand.Text()
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic}}); err != nil {
				t.Fatal(err)
			}
			sink, err := natsbroker.NewSink(nc, &natsbroker.SinkOptions{Route: func(m *postrider.Message) (envelope.Route, error) {
				return envelope.Route{Topic: m.Topic, Key: m.Key, Format: format}, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			sent := texts(topic)
			if errs := sink.Deliver(t.Context(), broker.Batch{Messages: sent}); errs != nil {
				t.Fatal(errs)
			}
			out, err := reader.Run(t.Context(), "", server.URL, topic, fmt.Sprint(len(sent)))
			if err != nil {
				t.Fatal(err)
			}
			got := records(t, out)
			if len(got) != len(sent) {
				t.Fatalf("%d messages were read, want %d", len(got), len(sent))
			}
			for i, r := range got {
				r.Topic, r.Origin = topic, fmt.Sprint("nats:", i)
				m, err := sink.Info().Codec.Decode(r)
				delete(m.Headers, jetstream.MsgIDHeader)
				want := sent[i]
				if err != nil || m.ID != want.ID || m.Key != want.Key || string(m.Payload) != string(want.Payload) || !maps.Equal(m.Headers, want.Headers) {
					t.Errorf("read %+v, %v; sent %+v", m, err, want)
				}
			}
		})
	}
}
