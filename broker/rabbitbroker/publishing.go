package rabbitbroker

import (
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// publishing is a message and where it goes.
type publishing struct {
	amqp.Publishing

	exchange, routingKey string
}

const (
	shortMost  = 255              // bytes of a short string: routing key, property, header name
	headerRoom = frameSize - 4096 // properties and headers share one frame
)

// wireCodec is the header table with RabbitMQ's rules.
func wireCodec() envelope.Codec { return envelope.Codec{Reserved: reserved} }

// reserved names command the broker (https://www.rabbitmq.com/docs/sender-selected
// and the delayed message exchange), or are written by it.
func reserved(name string) bool {
	switch strings.ToLower(name) {
	case "cc", "bcc", "x-delay", "x-death", "x-delivery-count", "x-acquired-count":
		return true
	}
	for _, prefix := range []string{"x-stream-", "x-first-death-", "x-last-death-", "x-opt-"} {
		if len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) {
			return true
		}
	}
	return false
}

// encode makes what is sent of m, or says why it cannot be sent.
func (s *Sink) encode(m *postrider.Message, scratch *scratch) (*publishing, error) {
	key := m.Topic
	if s.opts.RoutingKey == RoutingByKey {
		if key = m.Key; key == "" {
			key = m.ID // spread over the queues
		}
	}
	if len(key) > shortMost {
		return nil, broker.Rejected(fmt.Errorf("the routing key has %d bytes, AMQP allows %d", len(key), shortMost), codeRoutingKey, s.opts.Exchange)
	}
	if limit := s.limit(); len(m.Payload) > limit {
		return nil, broker.Rejected(fmt.Errorf("the payload has %d bytes, above the limit of %d (the broker's max_message_size, or max-message-bytes in the URL)", len(m.Payload), limit), codeTooLarge, s.destination(key))
	}
	carried := envelope.Carried(0)
	if key == m.Topic {
		carried = envelope.TopicCarried
	}
	scratch.hs, scratch.buf = s.codec.Append(scratch.hs[:0], scratch.buf[:0], m, carried)
	table := make(amqp.Table, len(scratch.hs))
	size := 0
	for _, h := range scratch.hs {
		if len(h.Name) > shortMost {
			return nil, broker.Rejected(fmt.Errorf("a header's name has %d bytes, AMQP allows %d", len(h.Name), shortMost), codeHeaders, s.destination(key))
		}
		table[h.Name] = string(h.Value)
		size += len(h.Name) + len(h.Value) + 6
	}
	if size > headerRoom {
		return nil, broker.Rejected(fmt.Errorf("the headers have %d bytes, a frame takes %d", size, headerRoom), codeHeaders, s.destination(key))
	}
	p := &publishing{exchange: s.opts.Exchange, routingKey: key, Publishing: amqp.Publishing{
		Headers: table, ContentType: short(m.ContentType), DeliveryMode: amqp.Persistent,
		MessageId: short(m.ID), Type: short(m.Type), Body: m.Payload,
	}}
	if !m.Time.IsZero() {
		p.Timestamp = m.Time
	}
	return p, nil
}

// destination is the queue or exchange that an answer is about.
func (s *Sink) destination(routingKey string) string {
	if s.opts.Exchange == "" {
		return routingKey
	}
	return s.opts.Exchange
}

// short is a property that repeats a header where there is room for it.
func short(v string) string {
	if len(v) > shortMost {
		return ""
	}
	return v
}

// scratch is the memory of one call's encoding.
type scratch struct {
	hs  []envelope.Header
	buf []byte
}
