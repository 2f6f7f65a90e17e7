package rabbitbroker

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// errAnonymous rejects a message without an id. With an id derived from its content, two
// equal messages would count as one; with a random one, every delivery would count. Its
// dead letter has a random id: each delivery leaves one, and none is lost.
var errAnonymous = errors.New("has neither the header postrider-id nor the property message-id: its deliveries cannot be told apart")

// decode converts the broker's delivery. Queues have no positions: a
// message without an id header is identified by its message-id.
func (s *Source) decode(d *amqp.Delivery) broker.Delivery {
	hs := make([]envelope.Header, 0, len(d.Headers)+2)
	for name, value := range d.Headers {
		if v, ok := headerText(value); ok && !reserved(name) { // tables and lists are no headers of a message
			hs = append(hs, envelope.Header{Name: name, Value: v})
		}
	}
	hs = properties(hs, d)
	place := "rabbitmq:" + s.opts.Queue + "/" + d.MessageId
	if d.MessageId == "" {
		sum := sha256.Sum256(d.Body)
		place = "rabbitmq:" + s.opts.Queue + "?" + hex.EncodeToString(sum[:])
	}
	codec := wireCodec()
	codec.Binding = readBinding(d.Headers, d.ContentType)
	codec.Foreign = s.opts.Foreign
	m, err := codec.Decode(envelope.Record{Topic: d.RoutingKey, Headers: hs, Payload: d.Body, Time: d.Timestamp.UTC(), Origin: place})
	origin := s.opts.Queue + "#" + strconv.FormatUint(d.DeliveryTag, 10)
	if _, ours := d.Headers[envelope.ID]; !ours && m.ID == derived(place) {
		switch {
		case d.MessageId == "" && err == nil:
			m.ID, err = "anonymous:"+rand.Text(), fmt.Errorf("message %s of queue %s %w", origin, s.opts.Queue, errAnonymous)
		case isUUID(d.MessageId):
			m.ID = d.MessageId
		}
	}
	return broker.Delivery{Message: m, Attempt: attemptOf(d), Origin: origin, Token: d.DeliveryTag, Err: err, Foreign: codec.IsForeign(hs)}
}

// derived returns the message id of a record without an id header.
func derived(place string) string {
	m, err := envelope.Codec{}.Decode(envelope.Record{Origin: place})
	if err != nil { // cannot happen: the record is valid
		return ""
	}
	return m.ID
}

func isUUID(id string) bool {
	return id != "" && (&postrider.Message{ID: id, Topic: "t"}).Validate() == nil
}

// properties adds headers for the properties of a foreign message.
func properties(hs []envelope.Header, d *amqp.Delivery) []envelope.Header {
	add := func(name, value string) {
		if _, there := d.Headers[name]; value != "" && !there {
			hs = append(hs, envelope.Header{Name: name, Value: []byte(value)})
		}
	}
	add(envelope.ContentType, d.ContentType)
	if _, ours := d.Headers[envelope.ID]; !ours {
		add(envelope.Type, d.Type)
	}
	return hs
}

// headerText returns the text of a header's value, and false for a type without one.
func headerText(v any) ([]byte, bool) {
	switch v := v.(type) {
	case string:
		return []byte(v), true
	case []byte:
		return v, true
	case bool:
		return strconv.AppendBool(nil, v), true
	case int8, uint8, int16, uint16, int32, uint32, int64, int, float32, float64:
		return fmt.Append(nil, v), true
	case time.Time:
		return v.UTC().AppendFormat(nil, time.RFC3339), true
	case nil:
		return nil, true
	}
	return nil, false
}
