package admin

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/envelope"
)

// Checked is the result of Check for one message.
type Checked struct {
	Message     string            `json:"message"` // its id
	Topic       string            `json:"topic"`
	Type        string            `json:"type,omitempty"`
	Rule        string            `json:"rule,omitempty"` // "" if no rule applies
	Destination string            `json:"destination,omitempty"`
	Key         string            `json:"key,omitempty"`
	Format      string            `json:"format,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"` // as on the wire
	Payload     int               `json:"payload_bytes"`     // of the payload on the wire
	Bytes       int               `json:"bytes"`             // what counts for the limit
	Limit       int               `json:"limit,omitempty"`   // 0: unknown
	Refused     string            `json:"refused,omitempty"` // the error, if it would be rejected
	Code        string            `json:"code,omitempty"`    // of Refused
}

// ErrNoPreview is the error of Check for a sink without Preview.
var ErrNoPreview = errors.New("this broker has no preview of messages")

// Check returns how sink would send msgs of a pipe, without sending anything. A
// message without an id gets one of zeros. claims, which may be nil, leaves payloads in the
// database; the row in the reference is 0, since a sample has none.
func Check(sink broker.Sink, pipe string, msgs []postrider.Message, claims *claim.Policy) ([]Checked, error) {
	info := sink.Info()
	if info.Preview == nil {
		return nil, fmt.Errorf("%s: %w", info.Name, ErrNoPreview)
	}
	all := make([]Checked, 0, len(msgs))
	for _, m := range msgs {
		if m.ID == "" {
			m.ID = sampleID
		}
		all = append(all, check(pipe, info, &m, claims))
	}
	return all, nil
}

const sampleID = "00000000-0000-7000-8000-000000000000"

func check(pipe string, info broker.Info, m *postrider.Message, claims *claim.Policy) Checked {
	c := Checked{Message: m.ID, Topic: m.Topic, Type: m.Type}
	err := m.Validate()
	if err == nil {
		var v broker.Preview
		if v, err = info.Preview(pipe, m); claims != nil && v.Route.Format.CanRefer() {
			if ref := claims.Ref(0, 0, m); ref != "" {
				*m = claim.Without(*m, ref)
				v, err = info.Preview(pipe, m)
			}
		}
		c.Rule, c.Destination, c.Key, c.Bytes, c.Limit = v.Route.Rule, v.Destination, v.Key, v.Bytes, v.Limit
		c.Payload, c.Headers = len(v.Payload), texts(v.Headers)
		if v.Destination != "" {
			c.Format = v.Route.Format.String()
		}
		if err == nil {
			if v.Limit > 0 { // Preview has checked the size by its own rules
				info.MaxMessageBytes = 0
			}
			w := envelope.Wire{Headers: v.Headers, Payload: v.Payload}
			if err = info.Fit(v.Destination, v.Key, &w, v.Bytes); err != nil {
				err = broker.Rejected(err, "LIMIT", v.Destination)
			}
		}
	}
	if err != nil {
		c.Refused = err.Error()
		c.Code = broker.Classify(err).Code
		if routed := (*envelope.RouteError)(nil); errors.As(err, &routed) {
			c.Rule = routed.Rule // also if the rule cannot route the message
		}
	}
	return c
}

func texts(headers []envelope.Header) map[string]string {
	all := make(map[string]string, len(headers))
	for _, h := range headers {
		all[h.Name] = string(h.Value)
	}
	return all
}

// Names returns the sorted names of the headers of c.
func (c *Checked) Names() []string {
	names := make([]string, 0, len(c.Headers))
	for name := range c.Headers {
		names = append(names, name)
	}
	slices.SortFunc(names, strings.Compare)
	return names
}
