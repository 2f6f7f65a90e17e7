package broker_test

import (
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// TestDedupIDsDiffer: no two of these are the same message to a broker.
func TestDedupIDsDiffer(t *testing.T) {
	type what struct{ pipe, destination, id, generation string }
	seen := map[string]what{}
	for _, w := range []what{
		{"main", "orders", "a", ""},
		{"main", "orders", "a", "1"},
		{"main", "orders", "a/1", ""},
		{"audit", "orders", "a", ""},
		{"main", "audit.orders", "a", ""},
		{"", "main/orders", "a", ""},
		{"main/orders", "", "a", ""},
		{"main", "größe", "a", ""},
		{"main", "gr%C3%B6%C3%9Fe", "a", ""},
	} {
		m := postrider.Message{ID: w.id}
		if w.generation != "" {
			m.Headers = map[string]string{envelope.Generation: w.generation}
		}
		id := broker.DedupID(w.pipe, w.destination, &m)
		if other, ok := seen[id]; ok {
			t.Errorf("%+v and %+v are both %q", w, other, id)
		}
		seen[id] = w
		for _, c := range []byte(id) {
			if c <= ' ' || c >= 0x7f {
				t.Errorf("%q is not printable ASCII", id)
			}
		}
	}
	if id := broker.DedupID("main", "orders", &postrider.Message{}); id != "" {
		t.Errorf("a message without an id has the id %q", id)
	}
}
