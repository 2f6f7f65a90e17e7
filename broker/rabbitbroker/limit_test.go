package rabbitbroker_test

import (
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/rabbitbroker"
)

// TestLargestOfAnOutbox: what an outbox takes is not above the limit that the
// relay compares messages with before they are sent.
func TestLargestOfAnOutbox(t *testing.T) {
	m := postrider.Message{
		ID: "01890a5d-ac96-774b-8cce-b302099a8057", Topic: strings.Repeat("t", postrider.MaxTopicLen), Key: strings.Repeat("k", postrider.MaxKeyLen),
		Type: strings.Repeat("y", postrider.MaxTypeLen), ContentType: strings.Repeat("c", postrider.MaxContentTypeLen),
		Payload: make([]byte, postrider.MaxPayload), Headers: map[string]string{"h": strings.Repeat("v", postrider.MaxHeaderBytes-1)},
	}
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	s, err := rabbitbroker.Open("amqp://127.0.0.1:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if limit := s.Info().MaxMessageBytes; m.Size() > limit {
		t.Errorf("a message of %d bytes is above the limit of %d", m.Size(), limit)
	}
}
