package rabbitbroker_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/golden"
	"github.com/postrider/postrider/internal/testserver"
)

// TestWireIsGolden: an independent client sees the messages of the golden files, byte for
// byte.
func TestWireIsGolden(t *testing.T) {
	for _, version := range versions() {
		url := testserver.SharedRabbitMQ(t, version).URL
		for _, f := range envelope.Formats() {
			t.Run(version+"/"+f.String(), func(t *testing.T) { wireOf(t, url, f) })
		}
	}
}

func wireOf(t *testing.T, url string, f envelope.Format) {
	t.Helper()
	ch := channel(t, url)
	queue := declare(t, ch, amqp.Table{"x-queue-type": "quorum"})
	sink, err := rabbitbroker.Open(url, &rabbitbroker.SinkOptions{Route: golden.Router(queue, f)})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	ds, err := ch.Consume(queue, "", true, true, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, m := range golden.Messages() {
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}}); errs != nil {
			t.Fatal(errs)
		}
		d := <-ds
		var hs []envelope.Header
		contentType := ""
		for name, v := range d.Headers {
			text, ok := v.(string)
			if !ok {
				t.Errorf("header %s is a %T", name, v)
			}
			if name == envelope.ContentType {
				contentType = text
			}
			hs = append(hs, envelope.Header{Name: name, Value: []byte(text)})
		}
		// The binding of CloudEvents has the property only.
		if d.ContentType != contentType || d.MessageId != m.ID || d.DeliveryMode != amqp.Persistent {
			t.Errorf("properties: content type %q, message id %q, delivery mode %d", d.ContentType, d.MessageId, d.DeliveryMode)
		}
		texts = append(texts, golden.Text(hs, d.Body))
	}
	if err := golden.Compare("amqp", f, texts...); err != nil {
		t.Error(err)
	}
}
