package broker

import "github.com/postrider/postrider/envelope"

// Preview is one message as a broker would get it. See [Info].Preview.
type Preview struct {
	Route       envelope.Route
	Destination string // the broker's own name of the topic, subject, exchange ...
	Key         string // the broker's own key, "" if it has none
	Headers     []envelope.Header
	Payload     []byte
	Bytes       int // what counts for Limit
	Limit       int // the most that Bytes may be; 0 where it is unknown
}
