package route

import (
	"errors"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/envelope"
)

// Door checks, before a message is written, for errors that the relay would meet when it
// sends it: no route, a format that cannot carry it, a limit of the broker. It is
// an [github.com/postrider/postrider/outbox.Door]:
//
//	door := &route.Door{Route: table.Route, Info: broker.Info{Name: "kafka", MaxMessageBytes: 1 << 20, MaxTopicBytes: 249}}
//	ob := outbox.New(dialect.Postgres, &outbox.Options{Door: door})
//
// It depends on its fields only: configure it like the relay. It accepts every message
// that a relay with that configuration would send. It may also accept a message that
// exceeds a limit by less than the size of its headers, since only the adapter knows
// which bytes count.
type Door struct {
	Route  envelope.Router // nil: every message to its topic, plain
	Info   broker.Info     // an adapter's Info, or the known limits of the broker
	Prefix string          // the adapter's prefix of every destination
	Claim  *claim.Policy   // the relay's: payloads that stay in the database are never too large; nil: none
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
	if r.Format == envelope.Confluent {
		r.Frame = &envelope.Frame{Inside: 5} // the relay asks the registry for the id
	}
	var w envelope.Wire
	destination := d.Prefix + r.Topic
	if err := d.Info.Codec.Encode(&w, &sample, &r, r.Carries(&sample, destination, true)); err != nil {
		return refusal(err, r.Rule)
	}
	return refusal(d.Info.Fit(destination, r.Key, &w, 0), r.Rule)
}

// refusal returns err as an exceeded limit of the route.
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
