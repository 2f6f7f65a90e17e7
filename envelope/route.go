package envelope

import (
	"fmt"

	"github.com/postrider/postrider"
)

// Format is the encoding of a message as headers and payload.
type Format uint8

// The formats. The package comment lists the fields that each carries.
const (
	Plain                 Format = iota // the payload as it is, Postrider's headers beside it
	CloudEvents                         // CloudEvents 1.0 in binary mode: the payload as it is, attributes as headers
	CloudEventsStructured               // CloudEvents 1.0 in structured mode: one JSON object
	Debezium                            // format of Debezium's outbox event router: the payload as it is, a header id
	Raw                                 // the payload as it is, nothing of Postrider's beside it
	Confluent                           // the payload behind the id of its schema in a registry, Postrider's headers beside it
)

// Formats returns all formats.
func Formats() []Format {
	return []Format{Plain, CloudEvents, CloudEventsStructured, Debezium, Raw, Confluent}
}

// String is the format's name in a configuration.
func (f Format) String() string {
	switch f {
	case Plain:
		return "plain"
	case CloudEvents:
		return "cloudevents"
	case CloudEventsStructured:
		return "cloudevents-structured"
	case Debezium:
		return "debezium"
	case Raw:
		return "raw"
	case Confluent:
		return "confluent"
	}
	return "invalid"
}

// CanRefer reports whether a message in the format may be sent without its payload:
// its readers understand [DataRef].
func (f Format) CanRefer() bool { return f != Debezium && f != Raw && f != Confluent }

// ParseFormat is the inverse of String.
func ParseFormat(name string) (Format, error) {
	for _, f := range Formats() {
		if f.String() == name {
			return f, nil
		}
	}
	return 0, fmt.Errorf("format is %.40q: use plain, cloudevents, cloudevents-structured, debezium, raw or confluent", name)
}

// Route is the destination and the format of one message.
type Route struct {
	// Topic is the destination: the broker's topic, subject, exchange, stream or
	// endpoint of that name, before the adapter's own prefix.
	Topic string
	// Key is the broker's own key, which chooses the partition. Order is always kept per
	// the message's key.
	Key    string
	Format Format
	// Headers are added to the message's own and take precedence. Adapters pass
	// them to the [Codec]; they must not change the map.
	Headers map[string]string
	// Source, Subject, Type and DataSchema are attributes of a CloudEvent;
	// "" for the defaults in the package comment.
	Source, Subject, Type, DataSchema string
	// Schema names the payload's schema in a registry, and Frame is what the registry knows
	// of it, by the sink of module schema/registry. Both are for the format [Confluent].
	Schema Schema
	Frame  *Frame
	// Rule names the rule that made the route, for people; "" for none.
	Rule string
}

// Router returns the route of a message. It must be a pure function of the
// message, safe for concurrent use, and must not change or keep it. Its error
// should be a *[RouteError]: the message is rejected with its code.
type Router func(m *postrider.Message) (Route, error)

// Of returns the message's route. The route of a nil Router is the message's topic and key, plain.
func (r Router) Of(m *postrider.Message) (Route, error) {
	if r == nil {
		return Route{Topic: m.Topic, Key: m.Key}, nil
	}
	return r(m)
}

// Codes of a [RouteError].
const (
	CodeNoRoute = "NO_ROUTE"       // no rule matches the message: add one
	CodeRoute   = "ROUTE_UNUSABLE" // the message lacks a field of the rule's template: change the rule
	CodeFormat  = "FORMAT_UNFIT"   // the format cannot carry this message: send it in another format
)

// RouteError is the reason why a message cannot be sent by its route.
type RouteError struct {
	Code   string // one of the codes above
	Rule   string // the rule, "" for none
	Field  string // of the message, "" if it is not about one
	Reason string // what is wrong with it and how to fix it
}

// Error names the rule, the field and the remedy.
func (e *RouteError) Error() string {
	s := ""
	if e.Rule != "" {
		s = "rule " + e.Rule + ": "
	}
	if e.Field != "" {
		s += e.Field + " "
	}
	return s + e.Reason
}

// ErrorCode returns Code, for the classes of package broker.
func (e *RouteError) ErrorCode() string { return e.Code }

// misfit returns the error of a format about a field of the message.
func (r *Route) misfit(field, reason string) error {
	return &RouteError{Code: CodeFormat, Rule: r.Rule, Field: field, Reason: reason}
}
