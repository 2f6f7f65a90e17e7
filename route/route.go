package route

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/schema"
)

// Rule is one line of a table.
type Rule struct {
	Name  string // for people; "" for its number
	Where string // its position in a file, such as "postrider.yml:7:5"; "" if none
	Match Match
	// Topic is the template of the destination; "" for {topic}, and with the
	// format Debezium for outbox.event.{topic}.
	Topic string
	// Key is the template of the broker's own key; "" for {key}.
	Key    string
	Format envelope.Format
	// Headers are templates of headers to add, by name. They take precedence over the message's.
	Headers map[string]string
	// Source, Subject, Type and DataSchema are templates of attributes of a
	// CloudEvent; "" for the defaults of package envelope.
	Source, Subject, Type, DataSchema string
	// Strategy, Framing, Record and SchemaVersion are for the format Confluent: how a
	// registry's subject is named, where the schema's id travels, the template of the
	// record's full name ("" for {type}), and the version of messages without one (0 for none).
	Strategy      Strategy
	Framing       envelope.Framing
	Record        string
	SchemaVersion int32
	// Validate is the treatment of a message whose payload Validator refuses; default Off. A
	// payload that is sealed, erased or left in the database passes: the relay cannot
	// read it. With claims, let claim.Policy.Valid ask this router too, before payloads are left
	// in the database.
	Validate  Validation
	Validator schema.Checker
	// Warn is called for such a message if Validate is Warn. It must return at once, be safe
	// for concurrent use, and may be called more than once for a message.
	Warn func(m *postrider.Message, err error)
}

// Validation is the treatment of a message whose payload breaks its schema.
type Validation uint8

// The validations of a rule.
const (
	Off    Validation = iota // payloads are not checked
	Warn                     // Rule.Warn is called, and the message is sent
	Reject                   // the message is rejected with the code SCHEMA_INVALID
)

// ParseValidation reads "off", "warn" or "reject".
func ParseValidation(s string) (Validation, error) {
	for v, name := range [...]string{Off: "off", Warn: "warn", Reject: "reject"} {
		if s == name {
			return Validation(v), nil
		}
	}
	return Off, fmt.Errorf("unknown validation %q: use off, warn or reject", s)
}

// Error reports an invalid rule.
type Error struct {
	Where string // as in the rule
	Rule  string // its name or number
	What  string
}

// Error names the rule and what is wrong with it.
func (e *Error) Error() string {
	s := fmt.Sprintf("route %s: %s", e.Rule, e.What)
	if e.Where != "" {
		s = e.Where + ": " + s
	}
	return s
}

// Table is a checked, ordered list of rules. It is immutable and safe for
// concurrent use.
type Table struct{ rules []rule }

// rule is a Rule with parsed templates.
type rule struct {
	name       string
	match      Match
	format     envelope.Format
	topic, key template
	attributes [4]template // in the order of attributeNames
	attributed bool        // one is set
	headers    []header
	constant   map[string]string // all headers, if none has a placeholder
	validate   func(m *postrider.Message) error
	schema     *naming // of the format Confluent
}

type header struct {
	name  string
	value template
}

// New checks rules and returns a table of them, in their order. Without rules
// no message has a route.
func New(rules []Rule) (*Table, error) {
	t := &Table{rules: make([]rule, 0, len(rules))}
	for i := range rules {
		r := &rules[i]
		name := r.name(i)
		bad := func(what string) error { return &Error{Where: r.Where, Rule: name, What: what} }
		for j := range i {
			if rules[j].name(j) == name {
				return nil, bad("duplicate name")
			}
			if rules[j].Match.covers(&r.Match) {
				return nil, bad(fmt.Sprintf("it is never reached: route %s before it matches all of its messages", rules[j].name(j)))
			}
		}
		made, what := compile(r, name)
		if what != "" {
			return nil, bad(what)
		}
		t.rules = append(t.rules, made)
	}
	return t, nil
}

func (r *Rule) name(i int) string {
	if r.Name != "" {
		return r.Name
	}
	return "#" + strconv.Itoa(i+1)
}

func compile(r *Rule, name string) (made rule, wrong string) {
	made = rule{name: name, match: r.Match, format: r.Format}
	topic, key := r.Topic, r.Key
	if topic == "" {
		topic = "{topic}"
		if r.Format == envelope.Debezium {
			topic = envelope.DebeziumPrefix + topic
		}
	}
	if key == "" {
		key = "{key}"
	}
	if wrong = r.unfit(); wrong != "" {
		return made, wrong
	}
	if made.schema, wrong = r.registered(); wrong != "" {
		return made, wrong
	}
	if made.validate, wrong = r.validation(name); wrong != "" {
		return made, wrong
	}
	made.key.may = true
	for _, p := range []struct {
		what, text string
		to         *template
	}{
		{"topic", topic, &made.topic},
		{"key", key, &made.key},
		{"source", r.Source, &made.attributes[0]},
		{"subject", r.Subject, &made.attributes[1]},
		{"event_type", r.Type, &made.attributes[2]},
		{"data_schema", r.DataSchema, &made.attributes[3]},
	} {
		may := p.to.may
		t, err := parse(p.text)
		if err != nil {
			return made, p.what + " " + err.Error()
		}
		t.may = may
		*p.to = t
	}
	for i := range made.attributes {
		made.attributed = made.attributed || len(made.attributes[i].parts) > 0
	}
	return made, made.compileHeaders(r.Headers)
}

func attributeNames() [4]string { return [4]string{"source", "subject", "event_type", "data_schema"} }

// compileHeaders parses the templates of the headers.
func (r *rule) compileHeaders(headers map[string]string) (wrong string) {
	constant := make(map[string]string, len(headers))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if wrong := headerName(name, r.format); wrong != "" {
			return wrong
		}
		t, err := parse(headers[name])
		if err != nil {
			return fmt.Sprintf("header %s %v", name, err)
		}
		r.headers = append(r.headers, header{name, t})
		if text, ok := t.constant(); ok {
			constant[name] = text
		}
	}
	if len(headers) > 0 && len(constant) == len(headers) {
		r.constant = constant
	}
	return ""
}

func headerName(name string, f envelope.Format) (wrong string) {
	m := postrider.Message{Topic: "t", Headers: map[string]string{name: ""}}
	if err := m.Validate(); err != nil {
		return err.Error()
	}
	switch {
	case strings.EqualFold(name, envelope.ContentType):
		return "header " + name + " belongs to the payload: it is set with the message"
	case f == envelope.Debezium && strings.EqualFold(name, envelope.DebeziumID):
		return "header " + name + " is the message's id in the format debezium: give yours another name"
	}
	return ""
}

// unfit returns an error about a setting of the rule that its format does not use, or "".
func (r *Rule) unfit() string {
	if r.Format == envelope.CloudEvents || r.Format == envelope.CloudEventsStructured {
		return ""
	}
	for _, s := range []struct{ name, value string }{
		{"source", r.Source}, {"subject", r.Subject}, {"event_type", r.Type}, {"data_schema", r.DataSchema},
	} {
		if s.value != "" {
			return s.name + " is an attribute of CloudEvents, and the format is " + r.Format.String()
		}
	}
	return ""
}

// Destinations returns the destinations that are known without a message: those of
// rules whose topic has no placeholders, in the order of the rules and each once.
func (t *Table) Destinations() []string {
	var all []string
	for i := range t.rules {
		if name, ok := t.rules[i].topic.constant(); ok && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// Route is an [envelope.Router]. Its errors are of type *[envelope.RouteError].
func (t *Table) Route(m *postrider.Message) (out envelope.Route, err error) {
	for i := range t.rules {
		if r := &t.rules[i]; r.match.matches(m) {
			err = r.route(&out, m)
			return out, err
		}
	}
	return out, &envelope.RouteError{
		Code:   envelope.CodeNoRoute,
		Reason: fmt.Sprintf("no route matches topic %q, type %q: add one, `postrider check` tries it", m.Topic, m.Type),
	}
}

// route sets the route of a message. A pointer saves two copies of a large struct per message.
func (r *rule) route(out *envelope.Route, m *postrider.Message) error {
	out.Format, out.Rule, out.Headers = r.format, r.name, r.constant
	if r.validate != nil {
		if err := r.validate(m); err != nil {
			return err
		}
	}
	var missing string
	if out.Topic, missing = r.topic.of(m); missing != "" {
		return r.lacks(missing, "topic")
	}
	if out.Key, missing = r.key.of(m); missing != "" {
		return r.lacks(missing, "key")
	}
	if r.attributed {
		for i, to := range [...]*string{&out.Source, &out.Subject, &out.Type, &out.DataSchema} {
			if *to, missing = r.attributes[i].of(m); missing != "" {
				return r.lacks(missing, attributeNames()[i])
			}
		}
	}
	if out.Topic == "" {
		return r.lacks("topic", "topic")
	}
	if r.schema != nil {
		if missing = r.schema.of(&out.Schema, m, out.Topic); missing == "schema_version" {
			return &envelope.RouteError{
				Code: envelope.CodeRoute, Rule: r.name, Field: missing,
				Reason: "is 0, so the schema is unknown: set Message.SchemaVersion, or schema_version in the route",
			}
		} else if missing != "" {
			return r.lacks(missing, "the schema's subject")
		}
	}
	if r.constant == nil && len(r.headers) > 0 {
		out.Headers = make(map[string]string, len(r.headers))
		for i := range r.headers {
			h := &r.headers[i]
			text, missing := h.value.of(m)
			if missing != "" {
				return r.lacks(missing, "header "+h.name)
			}
			if text != "" {
				out.Headers[h.name] = text
			}
		}
	}
	return nil
}

// lacks returns the error for a message without a value that a template needs.
func (r *rule) lacks(field, what string) error {
	return &envelope.RouteError{
		Code: envelope.CodeRoute, Rule: r.name, Field: field,
		Reason: "is empty or missing, and " + what + " is made of it: match messages that have it, or write {NAME|TEXT}",
	}
}
