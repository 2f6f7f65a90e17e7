package rabbitbroker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// errAnonymous: with an id made of its content, two equal messages would count as
// one; with one made up, every delivery of it would count.
var errAnonymous = errors.New("has neither the header postrider-id nor the property message-id: its deliveries cannot be told apart")

// decode makes a delivery of what the broker sent. Queues have no positions: a
// message that is not Postrider's is known by its message-id.
func (s *Source) decode(d *amqp.Delivery) broker.Delivery {
	var (
		hs   []envelope.Header
		ours bool
	)
	for name, value := range d.Headers {
		if reserved(name) {
			continue
		}
		v, ok := headerText(value)
		if !ok {
			continue // a table or a list is nobody's header
		}
		ours = ours || name == envelope.ID
		hs = append(hs, envelope.Header{Name: name, Value: v})
	}
	if !ours {
		hs = append(hs, properties(d)...)
	}
	origin := s.opts.Queue + "#" + strconv.FormatUint(d.DeliveryTag, 10)
	place := "rabbitmq:" + s.opts.Queue + "/" + d.MessageId
	if d.MessageId == "" {
		sum := sha256.Sum256(d.Body)
		place = "rabbitmq:" + s.opts.Queue + "?" + hex.EncodeToString(sum[:])
	}
	m, err := wireCodec().Decode(envelope.Record{
		Topic: d.RoutingKey, Headers: hs, Payload: d.Body, Time: d.Timestamp.UTC(), Origin: place,
	})
	if err == nil && !ours && d.MessageId == "" {
		err = fmt.Errorf("message %s of queue %s %w", origin, s.opts.Queue, errAnonymous)
	}
	return broker.Delivery{Message: m, Attempt: attemptOf(d), Origin: origin, Token: d.DeliveryTag, Err: err}
}

// properties are the headers that a foreign message's properties stand for.
func properties(d *amqp.Delivery) []envelope.Header {
	var hs []envelope.Header
	for name, value := range map[string]string{envelope.ContentType: d.ContentType, envelope.Type: d.Type} {
		if value != "" {
			hs = append(hs, envelope.Header{Name: name, Value: []byte(value)})
		}
	}
	return hs
}

// headerText is the text of a header's value, whatever its type on the wire.
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
