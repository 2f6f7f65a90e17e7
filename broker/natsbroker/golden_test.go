package natsbroker_test

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/golden"
	"github.com/postrider/postrider/internal/testserver"
)

// TestWireIsGolden: an independent client sees the messages of the golden files, byte for
// byte.
func TestWireIsGolden(t *testing.T) {
	nc := connect(t, testserver.SharedNATS(t).URL)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range envelope.Formats() {
		t.Run(f.String(), func(t *testing.T) {
			topic := "golden" + rand.Text()
			stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic}})
			if err != nil {
				t.Fatal(err)
			}
			sink, err := natsbroker.NewSink(nc, &natsbroker.SinkOptions{Route: golden.Router(topic, f)})
			if err != nil {
				t.Fatal(err)
			}
			var texts []string
			for i, m := range golden.Messages() {
				if errs := sink.Deliver(t.Context(), broker.Batch{Pipe: "main", Messages: []postrider.Message{m}}); errs != nil {
					t.Fatal(errs)
				}
				raw, err := stream.GetMsg(t.Context(), uint64(i+1))
				if err != nil {
					t.Fatal(err)
				}
				if id := raw.Header["Nats-Msg-Id"]; len(id) != 1 || !strings.HasPrefix(id[0], "main/"+topic+"/"+m.ID) {
					t.Errorf("Nats-Msg-Id %q", id)
				}
				delete(raw.Header, "Nats-Msg-Id") // the server's, not a format's
				var hs []envelope.Header
				for name, values := range raw.Header {
					for _, v := range values {
						hs = append(hs, envelope.Header{Name: name, Value: []byte(v)})
					}
				}
				texts = append(texts, golden.Text(hs, raw.Data))
			}
			if err := golden.Compare("nats", f, texts...); err != nil {
				t.Error(err)
			}
		})
	}
}
