package rabbitbroker_test

import (
	"maps"
	"net/url"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/testserver"
)

// TestCloudEventsPrefix: the attributes have the configured prefix,
// and the source reads every prefix.
func TestCloudEventsPrefix(t *testing.T) {
	versions := versions()
	address := testserver.SharedRabbitMQ(t, versions[len(versions)-1]).URL
	for _, prefix := range []string{"", "cloudEvents_", "cloudEvents:", "ce-"} {
		t.Run(prefix, func(t *testing.T) {
			u, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			want := "cloudEvents_"
			if prefix != "" {
				q := u.Query()
				q.Set("cloudevents-prefix", prefix)
				u.RawQuery, want = q.Encode(), prefix
			}
			ch := channel(t, address)
			queue := declare(t, ch, amqp.Table{"x-queue-type": "quorum"})
			sink, err := rabbitbroker.Open(u.String(), &rabbitbroker.SinkOptions{Route: func(m *postrider.Message) (envelope.Route, error) {
				return envelope.Route{Topic: m.Topic, Key: m.Key, Format: envelope.CloudEvents}, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			defer sink.Close()
			m := postrider.Message{
				ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: queue, Key: "Zürich", Type: "order.placed", Payload: []byte("{}"),
				Headers: map[string]string{"tenant": "acme", "ce-id": "user's", "cloudEvents_id": "user's", "cloudEvents:id": "user's"},
			}
			if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m, m}}); errs != nil {
				t.Fatal(errs)
			}
			raw, ok, err := ch.Get(queue, true)
			if err != nil || !ok || raw.Headers[want+"type"] != m.Type || raw.Headers[want+"subject"] != m.Key || raw.Headers[want+"tenant"] != "acme" {
				t.Errorf("%v, %v; want attributes behind %s", raw.Headers, err, want)
			}
			source, err := rabbitbroker.OpenSource(u.String(), &rabbitbroker.SourceOptions{Queue: queue, Unchecked: true})
			if err != nil {
				t.Fatal(err)
			}
			defer source.Close()
			for limit := time.Now().Add(time.Minute); ; {
				ds, err := source.Receive(t.Context(), 1)
				if len(ds) == 0 && time.Now().Before(limit) {
					continue
				}
				if err != nil || len(ds) != 1 || ds[0].Err != nil {
					t.Fatalf("%v, %v", ds, err)
				}
				if got := ds[0].Message; got.ID != m.ID || got.Key != m.Key || got.Type != m.Type || !maps.Equal(got.Headers, m.Headers) {
					t.Errorf("received %+v, sent %+v", got, m)
				}
				return
			}
		})
	}
	if _, err := rabbitbroker.Open("amqp://localhost/?cloudevents-prefix=ce_", nil); err == nil {
		t.Error("a prefix that no client knows is taken")
	}
}
