package envelope

import (
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider"
)

// Decode returns the message of a record in any format. A record with
// the header [ID] is [Plain], a record with the attribute specversion is a CloudEvent
// in binary mode, a record whose content type begins with application/cloudevents is
// a CloudEvent in structured mode, a record with the header [Foreign].ID comes from
// another writer, and any other is [Raw].
//
// An error is a *[DecodeError] about the first unreadable header; then the
// message has all other fields and always an id. If a name occurs twice, the
// last one counts.
func (c Codec) Decode(r Record) (postrider.Message, error) {
	m := postrider.Message{Topic: r.Topic, Key: r.Key, Payload: r.Payload, Time: r.Time}
	var first error
	if c.Fold {
		r.Headers = foldNames(r.Headers)
	}
	if c.Lines {
		r.Headers, first = decodeLines(r.Headers, c.Fold, r.Origin)
	}
	if err := c.decode(&m, &r); err != nil && first == nil {
		first = err
	}
	if m.ID == "" {
		m.ID = derivedID(r.Origin)
	}
	return m, first
}

func (c Codec) decode(m *postrider.Message, r *Record) error {
	f := c.formatOf(r.Headers)
	if f != Plain {
		r.Headers = c.foreignNames(r.Headers)
	}
	switch f {
	case CloudEvents:
		return c.decodeBinary(m, r)
	case CloudEventsStructured:
		return c.decodeStructured(m, r)
	case Debezium:
		return c.decodeForeign(m, r)
	case Plain, Raw, Confluent:
	}
	return c.decodeHeaders(m, r, func(*Header) bool { return false })
}

// formatOf finds the format by the headers. [Plain] and [Raw] are decoded alike.
func (c Codec) formatOf(headers []Header) Format {
	f := Raw
	for i := range headers {
		h := &headers[i]
		switch {
		case h.Name == ID:
			return Plain
		case f == CloudEvents:
		case c.Binding.isContentType(h.Name) && isEvent(string(h.Value)):
			f = CloudEventsStructured
		case f == Raw && c.isForeign(h, c.Foreign.ID):
			f = Debezium
		default:
			if name, ok := c.Binding.attribute(h.Name); ok && name == "specversion" {
				f = CloudEvents
			}
		}
	}
	return f
}

// IsForeign reports whether another writer than Postrider made a record with these headers,
// as far as they show it: it has neither [ID] nor [FrameSize]. So are records of the format
// [Raw], and those of [Debezium] and [CloudEvents] whose payload begins with no zero byte.
func (c Codec) IsForeign(headers []Header) bool {
	for i := range headers {
		name := headers[i].Name
		if name == ID || name == FrameSize || c.Fold && (strings.EqualFold(name, ID) || strings.EqualFold(name, FrameSize)) {
			return false
		}
	}
	return true
}

// foreignNames returns the headers with the content type's header renamed to
// [ContentType].
func (c Codec) foreignNames(headers []Header) []Header {
	for i := range headers {
		if name := headers[i].Name; name != ContentType && c.Binding.isContentType(name) {
			headers = slices.Clone(headers)
			headers[i].Name = ContentType
		}
	}
	return headers
}

// decodeHeaders decodes the headers for which taken returns false.
func (c Codec) decodeHeaders(m *postrider.Message, r *Record, taken func(*Header) bool) error {
	var first error
	for i := range r.Headers {
		h := &r.Headers[i]
		if taken(h) {
			continue
		}
		if err := c.decodeHeader(m, h); err != nil && first == nil {
			first = &DecodeError{Header: h.Name, Origin: r.Origin, Err: err}
		}
	}
	return first
}

// decodeForeign reads a record whose id is in a header of another name.
func (c Codec) decodeForeign(m *postrider.Message, r *Record) error {
	m.Topic = strings.TrimPrefix(m.Topic, c.Foreign.TopicPrefix)
	var bad error
	err := c.decodeHeaders(m, r, func(h *Header) bool {
		switch {
		case c.isForeign(h, c.Foreign.ID):
			id := string(h.Value)
			if m.ID = id; !isUUID(id) {
				m.ID = derivedID("id:" + m.Topic + "\x00" + id)
				setHeader(m, h.Name, id)
			}
		case c.isForeign(h, c.Foreign.Type):
			m.Type = string(h.Value)
		case c.isForeign(h, c.Foreign.SchemaVersion):
			if len(h.Value) == 0 { // a column without a value
				return true
			}
			if err := c.decodeHeader(m, &Header{SchemaVersion, h.Value}); err != nil {
				bad = &DecodeError{Header: h.Name, Origin: r.Origin, Err: err}
			}
		default:
			return false
		}
		return true
	})
	if bad != nil {
		return bad
	}
	return err
}

func (c Codec) isForeign(h *Header, name string) bool {
	return name != "" && (h.Name == name || c.Fold && strings.EqualFold(h.Name, name))
}

func isUUID(id string) bool {
	return id != "" && (&postrider.Message{ID: id, Topic: "t"}).Validate() == nil
}

func setHeader(m *postrider.Message, name, value string) {
	if m.Headers == nil {
		m.Headers = make(map[string]string, 4)
	}
	m.Headers[name] = value
}

func (c Codec) decodeHeader(m *postrider.Message, h *Header) error {
	switch h.Name {
	case ID:
		id := string(h.Value)
		if !isUUID(id) {
			return errNotUUID
		}
		m.ID = id
	case Type:
		m.Type = string(h.Value)
	case Topic:
		m.Topic = string(h.Value)
	case Key:
		m.Key = string(h.Value)
	case ContentType:
		m.ContentType = string(h.Value)
	case Version:
		n, err := decimal(h.Value, 64)
		if err != nil {
			return err
		}
		m.Version = n
	case SchemaVersion:
		n, err := decimal(h.Value, 32)
		if err != nil {
			return err
		}
		m.SchemaVersion = int32(n)
	case Time:
		t, err := time.Parse(time.RFC3339Nano, string(h.Value))
		if err != nil {
			return errNotTime
		}
		m.Time = t.UTC()
	case FrameSize:
		return unframe(m, h.Value)
	default:
		setHeader(m, c.userName(h.Name), string(h.Value))
	}
	return nil
}

// userName is the inverse of wireName.
func (c Codec) userName(name string) string {
	rest, escaped := strings.CutPrefix(name, EscapePrefix)
	switch {
	case !escaped:
		return name
	case c.Fold || c.Lines:
		return unfoldName(rest)
	}
	return rest
}
