package rabbitbroker_test

import (
	"testing"

	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/internal/golden"
)

// TestLargestOfAnOutbox: the largest message of an outbox is below the limit that the
// relay checks before it sends a message.
func TestLargestOfAnOutbox(t *testing.T) {
	m := golden.Largest()
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
