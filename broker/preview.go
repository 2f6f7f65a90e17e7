package broker

import (
	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// Previewer is a Sink that says what it would send. `postrider check` asks it.
type Previewer interface {
	// Preview says what Deliver would send of m. Its error is the one with which
	// Deliver would answer m before anything is sent; the Preview then holds what
	// is known. It does no I/O: what only the broker knows is not looked at.
	Preview(m *postrider.Message) (Preview, error)
}

// Preview is one message as a broker would get it.
type Preview struct {
	Route       envelope.Route
	Destination string // the broker's own name of the topic, subject, exchange ...
	Key         string // the broker's own key, "" if it has none
	Headers     []envelope.Header
	Payload     []byte
	Bytes       int // what counts for Limit
	Limit       int // the most that Bytes may be; 0 where it is not known
}
