package envelope

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/postrider/postrider"
)

// Names of message headers for attributes of a CloudEvent that a message
// has no field for. Decoding sets them too.
const (
	EventSource     = "ce-source"
	EventSubject    = "ce-subject"
	EventDataSchema = "ce-dataschema"
	EventID         = "ce-id" // of another writer's event whose id is not a UUID; never written
)

// eventType is the media type of an event in structured mode.
const eventType = "application/cloudevents+json"

// isEvent reports whether a content type means that the payload is a CloudEvent.
func isEvent(contentType string) bool {
	const prefix = "application/cloudevents"
	return len(contentType) >= len(prefix) && strings.EqualFold(contentType[:len(prefix)], prefix)
}

// defaultSource returns the default source of a topic's events.
func defaultSource(topic string) string { return "/" + url.PathEscape(topic) }

// event is an event under construction.
type event struct {
	c          Codec
	w          *Wire
	m          *postrider.Message
	r          *Route
	structured bool
	body       []byte // in structured mode
}

// encodeEvent writes m as a CloudEvent.
func (c Codec) encodeEvent(w *Wire, m *postrider.Message, r *Route, carried Carried) error {
	e := event{c: c, w: w, m: m, r: r, structured: r.Format == CloudEventsStructured, body: w.body[:0]}
	if e.structured {
		e.body = append(e.body, '{')
		w.add(ContentType, eventType)
	}
	if err := e.required(); err != nil {
		return err
	}
	if err := e.optional(); err != nil {
		return err
	}
	if carried&TopicCarried == 0 {
		w.text(Topic, m.Topic)
	}
	switch {
	case m.Key != "" && isText(m.Key):
		e.put("partitionkey", m.Key)
	default:
		w.key(m.Key, carried)
	}
	w.unframed(m)
	e.headers()
	if e.structured {
		e.data()
		e.body = append(e.body, '}')
		w.body, w.Payload = e.body, e.body
	}
	return nil
}

// required puts the attributes that an event must have.
func (e *event) required() error {
	id, typ := e.m.ID, e.r.Type
	if typ == "" {
		typ = e.m.Type
	}
	source := e.given(e.r.Source, EventSource)
	if source == "" {
		source = defaultSource(e.m.Topic)
	}
	switch {
	case id == "":
		return e.r.misfit("id", "is empty: a CloudEvent must have one")
	case typ == "":
		return e.r.misfit("type", "is empty: a CloudEvent must have one; enqueue messages with a type, or give the rule a type such as {topic}")
	case !isText(typ):
		return e.r.misfit("type", "has a control character, which an attribute of a CloudEvent cannot have")
	case !isReference(source):
		return e.r.misfit("source", "is no URI reference: a CloudEvent must have one; set source in the rule or the header "+EventSource)
	}
	e.put("specversion", "1.0")
	e.put("id", id)
	e.put("source", source)
	e.put("type", typ)
	return nil
}

// optional puts the attributes that have a meaning in the specification or here.
func (e *event) optional() error {
	m := e.m
	subject := e.given(e.r.Subject, EventSubject)
	if subject == "" && isText(m.Key) {
		subject = m.Key
	}
	schema := e.given(e.r.DataSchema, EventDataSchema)
	switch {
	case !isText(subject):
		return e.r.misfit("subject", "has a control character, which an attribute of a CloudEvent cannot have")
	case !isReference(schema):
		return e.r.misfit("data schema", "is no URI: set data_schema in the rule or the header "+EventDataSchema)
	case !isText(m.ContentType):
		return e.r.misfit("content type", "has a control character, which an attribute of a CloudEvent cannot have")
	case !e.structured && isEvent(m.ContentType):
		return e.r.misfit("content type", "is that of a CloudEvent in structured mode, and every reader would decode the record as one: use the format raw for payloads that are CloudEvents")
	}
	e.put("subject", subject)
	if !m.Time.IsZero() {
		e.put("time", m.Time.UTC().Format(time.RFC3339Nano))
	}
	if e.structured || e.c.Binding == BindingNATS {
		e.put("datacontenttype", m.ContentType)
	} else {
		e.w.text(ContentType, m.ContentType)
	}
	e.put("dataschema", schema)
	if m.Version > 0 {
		e.put("sequence", sequence(m.Version))
	}
	if m.SchemaVersion > 0 {
		e.put("schemaversion", strconv.Itoa(int(m.SchemaVersion)))
	}
	return nil
}

// sequence returns a padded number, because the extension sequence is compared as text.
func sequence(version int64) string {
	s := strconv.FormatInt(version, 10)
	return "0000000000000000000"[:19-len(s)] + s
}

// given returns the rule's value, or the message's header of that name.
func (e *event) given(rule, header string) string {
	if rule != "" {
		return rule
	}
	if v, ok := e.r.Headers[header]; ok {
		return v
	}
	return e.m.Headers[header]
}

// headers adds the user's headers: as extension attributes if name and value
// allow it, otherwise beside the event. The trace context is added as both, since an
// event's is that of its origin and a record's that of its transport.
func (e *event) headers() {
	all := e.m.Headers
	if len(e.r.Headers) > 0 {
		all = make(map[string]string, len(e.m.Headers)+len(e.r.Headers)) // the message's may be nil
		maps.Copy(all, e.m.Headers)
		maps.Copy(all, e.r.Headers)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := all[name]
		switch name {
		case EventSource, EventSubject, EventDataSchema:
			if value != "" { // an attribute has it
				continue
			}
		case DataRef:
			e.put("dataref", value)
			continue
		case "traceparent", "tracestate":
			e.beside(name, value)
		}
		if isExtension(name) && value != "" && isText(value) {
			e.put(name, value)
		} else {
			e.beside(name, value)
		}
	}
}

// beside adds a header that is not an attribute.
func (e *event) beside(name, value string) {
	if _, is := e.c.Binding.attribute(name); is {
		e.w.add(e.c.fit(EscapePrefix+name), value)
		return
	}
	e.c.userHeader(e.w, e.r.Format, name, value)
}

// put adds an attribute unless its value is empty.
func (e *event) put(name, value string) {
	switch {
	case value == "":
	case e.structured:
		if len(e.body) > 1 {
			e.body = append(e.body, ',')
		}
		e.body = appendString(e.body, name)
		e.body = append(e.body, ':')
		e.body = appendString(e.body, value)
	default:
		e.w.add(e.c.Binding.prefix()+name, e.c.Binding.value(value))
	}
}

// isText reports whether s can be a String of a CloudEvent (section 3.2 of the
// specification): no control characters, no noncharacters, valid UTF-8.
func isText(s string) bool {
	for _, r := range s {
		if r < ' ' || r >= 0x7f && r <= 0x9f || r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef {
			return false
		}
	}
	return utf8.ValidString(s)
}

// isReference reports whether s is a URI reference, or empty.
func isReference(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f || strings.IndexByte("\"<>\\^`{|}", s[i]) >= 0 {
			return false
		}
	}
	_, err := url.Parse(s)
	return err == nil
}

// isExtension reports whether a user header's name can be that of an extension
// attribute: by the specification's rules, and without a meaning of its own here.
func isExtension(name string) bool {
	if len(name) == 0 || len(name) > 20 {
		return false
	}
	switch name {
	case "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data",
		"partitionkey", "sequence", "schemaversion", "dataref":
		return false
	}
	return isAttribute(name)
}

func isAttribute(name string) bool {
	for i := range len(name) {
		if c := name[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9') {
			return false
		}
	}
	return name != ""
}
