package pubsubbroker

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// decode makes a delivery of a received message. A message that names itself in no
// attribute is known by its MessageId, which stays the same at each delivery.
func (s *Source) decode(m *pubsubpb.ReceivedMessage) broker.Delivery {
	msg := m.GetMessage()
	origin := s.name + "#" + msg.GetMessageId()
	r := envelope.Record{
		Topic: strings.TrimPrefix(s.name, s.opts.Prefix), Origin: "pubsub:" + origin, Payload: msg.GetData(), Time: msg.GetPublishTime().AsTime(),
	}
	if key := msg.GetOrderingKey(); !strings.HasPrefix(key, hashPrefix) {
		r.Key = key
	}
	var parts []string
	for name, value := range msg.GetAttributes() {
		if name == emptyAttribute && len(msg.GetData()) == 0 {
			continue
		}
		if n, ok := strings.CutPrefix(name, headersAttribute); ok {
			at, err := strconv.Atoi(n)
			if err == nil && at >= 0 && at < mostAttributes {
				if at >= len(parts) {
					parts = append(parts, make([]string, at+1-len(parts))...)
				}
				parts[at] = value
				continue
			}
		}
		r.Headers = append(r.Headers, envelope.Header{Name: name, Value: []byte(value)})
	}
	var broken error
	if len(parts) > 0 {
		var rest map[string]string
		if err := json.Unmarshal([]byte(strings.Join(parts, "")), &rest); err != nil {
			broken = &envelope.DecodeError{Header: headersAttribute + "0", Origin: r.Origin, Err: err}
		}
		for name, value := range rest {
			r.Headers = append(r.Headers, envelope.Header{Name: name, Value: []byte(value)})
		}
	}
	slices.SortFunc(r.Headers, func(a, b envelope.Header) int { return strings.Compare(a.Name, b.Name) })
	decoded, err := s.codec.Decode(r)
	if err == nil {
		err = broken
	}
	return broker.Delivery{Message: decoded, Attempt: int(m.GetDeliveryAttempt()), Origin: origin, Err: err, Foreign: s.codec.IsForeign(r.Headers)}
}
