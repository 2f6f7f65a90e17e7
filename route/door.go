package route

import (
	"errors"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/envelope"
)

// Door tells, before a message is written, what the relay would find when it
// sends it: no route, a format that cannot carry it, a limit of the broker. It is
// an [github.com/postrider/postrider/outbox.Door]:
//
//	door := &route.Door{Route: table.Route, Info: broker.Info{Name: "kafka", MaxMessageBytes: 1 << 20, MaxTopicBytes: 249}}
//	ob := outbox.New(dialect.Postgres, &outbox.Options{Door: door})
//
// It knows what it is told: keep it as the relay's configuration is. It refuses
// nothing that such a relay would send, and may pass a message that comes within
// the size of its headers of a limit, since only the adapter knows what is counted.
type Door struct {
	Route  envelope.Router // nil: every message to its topic, plain
	Info   broker.Info     // an adapter's Info, or what is known of the broker
	Prefix string          // the adapter's, before every destination
	Claim  *claim.Policy   // the relay's: what it leaves in the database is not too large; nil: none
}

// Check returns a *[postrider.LimitError] that names field and route, or nil.
func (d *Door) Check(m *postrider.Message) error {
	sample := *m
	if sample.ID == "" {
		sample.ID = "00000000-0000-7000-8000-000000000000"
	}
	sample.Time = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // the database sets it
	r, err := d.Route.Of(&sample)
	if err != nil {
		return refusal(err, r.Rule)
	}
	if d.Claim != nil && len(sample.Payload) > d.Claim.Above && r.Format.CanRefer() {
		sample = claim.Without(sample, claim.Ref{Schema: d.Claim.Schema, ID: sample.ID, Bytes: len(sample.Payload)}.String())
	}
	var w envelope.Wire
	destination := d.Prefix + r.Topic
	if err := d.Info.Codec.Encode(&w, &sample, &r, r.Carries(&sample, destination, true)); err != nil {
		return refusal(err, r.Rule)
	}
	return refusal(d.Info.Fit(destination, r.Key, &w, 0), r.Rule)
}

// refusal is err as a limit of the route.
func refusal(err error, rule string) error {
	var (
		limit *postrider.LimitError
		route *envelope.RouteError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &limit):
		limit.Route = rule
		return limit
	case errors.As(err, &route):
		field := route.Field
		if field == "" {
			field = "topic"
		}
		return &postrider.LimitError{Field: field, Reason: route.Reason, Route: route.Rule}
	}
	return &postrider.LimitError{Field: "route", Reason: err.Error(), Route: rule}
}
