// Package golden has the messages of the golden files in envelope/testdata, and
// the text that stands there: for the codecs alone, and for what a reader that
// knows nothing of ours sees on a live broker. And the largest message there is.
package golden

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// ID is that of all messages.
const ID = "01890a5d-ac96-774b-bcce-b302099a8057"

// Messages are one as most are, and one that no broker likes.
func Messages() []postrider.Message {
	return []postrider.Message{
		{
			ID: ID, Topic: "orders", Key: "o-17", Type: "order.placed", Payload: []byte(`{"order":17,"note":"zwölf <3"}`), ContentType: "application/json",
			Headers: map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tenant": "acme", "X-Shop": "berlin"},
			Version: 3, SchemaVersion: 2, Time: time.Date(2026, 8, 1, 2, 3, 4, 567800000, time.UTC),
		},
		{
			ID: ID, Topic: "odd topic:ü", Key: "k\n", Type: "100% \"sure\"", Payload: []byte{0, 0xff, '\n'}, ContentType: "application/octet-stream",
			Headers: map[string]string{
				"ce-id": "forged", "ce_id": "forged", "cloudEvents_id": "forged", "content-type": "user's", "id": "user's", "Nats-Rollup": "all",
				"x-death": "user's", "tabbed": "a\tb", "empty": "", envelope.EventSource: "//shop/1", envelope.Generation: "2",
			},
		},
	}
}

// Largest is as large as an outbox takes a message.
func Largest() postrider.Message {
	return postrider.Message{
		ID: ID, Topic: strings.Repeat("t", postrider.MaxTopicLen), Key: strings.Repeat("k", postrider.MaxKeyLen),
		Type: strings.Repeat("y", postrider.MaxTypeLen), ContentType: strings.Repeat("c", postrider.MaxContentTypeLen),
		Payload: make([]byte, postrider.MaxPayload), Headers: map[string]string{"h": strings.Repeat("v", postrider.MaxHeaderBytes-1)},
	}
}

// Route is the golden files' route of a message to another topic.
func Route(m *postrider.Message, topic string, f envelope.Format) envelope.Route {
	r := envelope.Route{Topic: topic, Key: m.Key, Format: f, Headers: map[string]string{"kind": m.Type}}
	if f == envelope.Confluent { // as module schema/registry adds it
		r.Frame = &envelope.Frame{Prefix: []byte{0, 0, 0, 1, 255}}
	}
	return r
}

// Router is Route for a sink.
func Router(topic string, f envelope.Format) envelope.Router {
	return func(m *postrider.Message) (envelope.Route, error) { return Route(m, topic, f), nil }
}

// Text is what stands in a golden file of one message. The order of headers
// means nothing.
func Text(headers []envelope.Header, payload []byte) string {
	lines := make([]string, 0, len(headers))
	for _, h := range headers {
		lines = append(lines, fmt.Sprintf("%s: %q\n", h.Name, h.Value))
	}
	slices.Sort(lines)
	return strings.Join(lines, "") + fmt.Sprintf("payload %q\n\n", payload)
}

// Compare reports how texts differ from the golden file of a broker, for tests two
// directories below the repository's root.
func Compare(broker string, f envelope.Format, texts ...string) error {
	file := filepath.Join("..", "..", "envelope", "testdata", broker+"-"+f.String()+".golden")
	want, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if got := strings.Join(texts, ""); got != string(want) {
		return fmt.Errorf("on the wire is\n%s\nand in %s\n%s", got, file, want)
	}
	return nil
}
