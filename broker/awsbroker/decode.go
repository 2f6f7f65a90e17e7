package awsbroker

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// decode makes a delivery of a received message. A message that names itself in no
// header is known by its MessageId, which stays the same at each receive.
func (s *Source) decode(m *types.Message) broker.Delivery {
	id := aws.ToString(m.MessageId)
	origin := s.name + "#" + id
	r := envelope.Record{Topic: s.queues.topicOf(s.name), Origin: "sqs:" + origin, Payload: []byte(aws.ToString(m.Body))}
	if ms, err := strconv.ParseInt(m.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)], 10, 64); err == nil {
		r.Time = time.UnixMilli(ms).UTC()
	}
	var broken error
	named := false // the key is in a header
	for name, v := range m.MessageAttributes {
		value := v.BinaryValue
		if v.StringValue != nil {
			value = []byte(*v.StringValue)
		}
		var err error
		switch name {
		case bodyAttribute:
			r.Payload, err = payloadOf(r.Payload, string(value))
		case headersAttribute:
			var rest map[string]string
			err = json.Unmarshal(value, &rest)
			for name, value := range rest {
				r.Headers = append(r.Headers, envelope.Header{Name: name, Value: []byte(value)})
				named = named || name == envelope.Key
			}
		default:
			r.Headers = append(r.Headers, envelope.Header{Name: name, Value: value})
			named = named || name == envelope.Key
		}
		if err != nil {
			broken = &envelope.DecodeError{Header: name, Origin: r.Origin, Err: err}
		}
	}
	group := m.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)]
	if !s.opts.Standard && !strings.HasPrefix(group, hashPrefix) {
		r.Key = group
	}
	headers := slices.Clone(r.Headers) // Decode may rename some in place
	msg, err := s.codec.Decode(r)
	if !named && r.Key != "" && msg.Key == msg.ID {
		// The group of a message without a key is its id. An event can carry a key that
		// equals the id in an attribute of its own: that one counts.
		r.Key, r.Headers = "", headers
		alone, _ := s.codec.Decode(r) // it fails as it did above
		msg.Key = alone.Key
	}
	if err == nil {
		err = broken
	}
	return broker.Delivery{Message: msg, Attempt: attempt(m), Origin: origin, Err: err}
}

// attempt is how often a message was received.
func attempt(m *types.Message) int {
	n, err := strconv.Atoi(m.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)])
	if err != nil || n < 1 {
		return 0
	}
	return n
}

// payloadOf undoes bodyOf.
func payloadOf(body []byte, how string) ([]byte, error) {
	switch how {
	case "empty":
		return nil, nil
	case "base64":
		payload := make([]byte, base64.StdEncoding.DecodedLen(len(body)))
		n, err := base64.StdEncoding.Decode(payload, body)
		if err != nil {
			return body, fmt.Errorf("the body is not base64: %w", err)
		}
		return payload[:n], nil
	}
	return body, fmt.Errorf("must be base64 or empty (got %q)", how)
}
