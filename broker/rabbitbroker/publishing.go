package rabbitbroker

import (
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// publishing is a message and its destination.
type publishing struct {
	amqp.Publishing

	exchange, routingKey string
}

// place is what the broker's return will say of the message.
func (p *publishing) place() place { return place{p.MessageId, p.routingKey} }

const (
	shortMost  = 255              // bytes of a short string: routing key, property, header name
	headerRoom = frameSize - 4096 // properties and headers share one frame
)

// wireCodec returns the header table for RabbitMQ.
func wireCodec() envelope.Codec {
	return envelope.Codec{Reserved: reserved, Binding: envelope.BindingAMQP}
}

// eventTypes is the beginning of the content types of structured CloudEvents.
const eventTypes = "application/cloudevents"

// bindingOf returns the CloudEvents binding that has the prefix.
func bindingOf(prefix string) (envelope.Binding, error) {
	switch prefix {
	case "", "cloudEvents_":
		return envelope.BindingAMQP, nil
	case "cloudEvents:":
		return envelope.BindingAMQPColon, nil
	case "ce-":
		return envelope.BindingAMQPDash, nil
	}
	return 0, fmt.Errorf("prefix of CloudEvents must be cloudEvents_, cloudEvents: or ce- (got %q)", prefix)
}

// readBinding returns the binding of a record. The prefix ce- counts only if no
// attribute has another prefix, and not in structured mode, where a user's header may
// begin with it.
func readBinding(headers amqp.Table, contentType string) envelope.Binding {
	if len(contentType) >= len(eventTypes) && strings.EqualFold(contentType[:len(eventTypes)], eventTypes) {
		return envelope.BindingAMQP
	}
	for _, name := range []string{"cloudEvents_specversion", "cloudEvents:specversion"} {
		if _, there := headers[name]; there {
			return envelope.BindingAMQP
		}
	}
	if _, there := headers["ce-specversion"]; there {
		return envelope.BindingAMQPDash
	}
	return envelope.BindingAMQP
}

// reserved reports whether the broker interprets a header name
// (https://www.rabbitmq.com/docs/sender-selected and the delayed message exchange) or
// writes it.
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

// route is the destination and format of a message.
type route struct {
	envelope.Route

	key         string // AMQP's routing key
	destination string // queue or exchange, for errors
}

// route asks the router for a message's route and derives the routing key.
func (s *Sink) route(m *postrider.Message) (route, error) {
	to, err := s.opts.Route.Of(m)
	if err != nil {
		return route{}, broker.Unsendable(err, "")
	}
	r := route{Route: to, key: to.Topic}
	if s.opts.RoutingKey == RoutingByKey {
		if r.key = to.Key; r.key == "" {
			r.key = m.ID // spread over the queues
		}
	}
	if r.destination = s.opts.Exchange; r.destination == "" {
		r.destination = r.key
	}
	if len(r.key) > shortMost {
		return r, broker.Rejected(fmt.Errorf("the routing key has %d bytes, AMQP allows %d", len(r.key), shortMost), codeRoutingKey, s.opts.Exchange)
	}
	return r, nil
}

// encode returns the publishing of m, or the error for which it cannot be sent.
func (s *Sink) encode(w *envelope.Wire, m *postrider.Message) (*publishing, route, error) {
	r, err := s.route(m)
	if err != nil {
		return nil, r, err
	}
	if err := s.codec.Encode(w, m, &r.Route, r.Carries(m, r.key, false)); err != nil {
		return nil, r, broker.Unsendable(err, r.destination)
	}
	if limit := s.limit(); len(w.Payload) > limit {
		return nil, r, broker.Rejected(fmt.Errorf("the payload has %d bytes, above the limit of %d (the broker's max_message_size, or max-message-bytes in the URL)", len(w.Payload), limit), codeTooLarge, r.destination)
	}
	p := &publishing{exchange: s.opts.Exchange, routingKey: r.key, Publishing: amqp.Publishing{
		Headers: make(amqp.Table, len(w.Headers)), DeliveryMode: amqp.Persistent,
		MessageId: short(m.ID), Type: short(m.Type), Body: w.Payload,
	}}
	size := 0
	for _, h := range w.Headers {
		if len(h.Name) > shortMost {
			return nil, r, broker.Rejected(fmt.Errorf("a header's name has %d bytes, AMQP allows %d", len(h.Name), shortMost), codeHeaders, r.destination)
		}
		value := string(h.Value)
		p.Headers[h.Name] = value
		size += len(h.Name) + len(value) + 6
		if h.Name == envelope.ContentType {
			p.ContentType = short(value)
		}
	}
	if size > headerRoom {
		return nil, r, broker.Rejected(fmt.Errorf("the headers have %d bytes, a frame takes %d", size, headerRoom), codeHeaders, r.destination)
	}
	if !m.Time.IsZero() {
		p.Timestamp = m.Time
	}
	return p, r, nil
}

// Preview is [broker.Info].Preview.
func (s *Sink) Preview(_ string, m *postrider.Message) (broker.Preview, error) {
	var w envelope.Wire
	_, r, err := s.encode(&w, m)
	return broker.Preview{
		Route: r.Route, Destination: r.destination, Key: r.key, Headers: w.Headers, Payload: w.Payload,
		Bytes: len(w.Payload), Limit: s.limit(),
	}, err
}

// short returns the value of a property that repeats a header, or "" if it is too long.
func short(v string) string {
	if len(v) > shortMost {
		return ""
	}
	return v
}
