package envelope

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider"
)

// The names of the table in the package comment.
const (
	ID            = "postrider-id"
	Type          = "postrider-type"
	Topic         = "postrider-topic"
	Key           = "postrider-key"
	Version       = "postrider-version"
	SchemaVersion = "postrider-schema-version"
	Time          = "postrider-time"
	ContentType   = "content-type"
	Generation    = "postrider-generation"
	Gap           = "postrider-gap"
	Encoded       = "postrider-encoded"
	// EscapePrefix stands before a user header's name that is reserved.
	EscapePrefix = "postrider-h-"
)

// Header is one header on the wire.
type Header struct {
	Name  string
	Value []byte
}

// Codec writes and reads messages. Its zero value suits a broker that reserves
// no header names. It is safe for concurrent use.
type Codec struct {
	// Reserved reports whether the broker gives name a meaning of its own; a
	// user header of that name travels behind [EscapePrefix].
	Reserved func(name string) bool
	// Lines says that the broker carries values as lines of text and would
	// change line breaks, control characters and space at the ends. Such values
	// travel percent-encoded, and [Encoded] names their headers.
	Lines bool
}

// Carried says what the broker carries outside the headers.
type Carried uint8

// What a record may carry by itself.
const (
	TopicCarried Carried = 1 << iota // the broker's topic is the message's topic
	KeyCarried                       // the record has a key, and it is the message's
)

// Append appends m's headers to dst and returns it. The values' bytes are
// appended to scratch, which is returned too: reuse both for the next message
// and nothing is allocated. The headers are valid until scratch is reused.
// User headers are written in no particular order.
func (c Codec) Append(dst []Header, scratch []byte, m *postrider.Message, carried Carried) ([]Header, []byte) {
	first := len(dst)
	text := func(name, value string) {
		if value != "" {
			at := len(scratch)
			scratch = append(scratch, value...)
			dst = append(dst, Header{name, scratch[at:len(scratch):len(scratch)]})
		}
	}
	text(ID, m.ID)
	text(Type, m.Type)
	if carried&TopicCarried == 0 {
		text(Topic, m.Topic)
	}
	if carried&KeyCarried == 0 {
		text(Key, m.Key)
	}
	for _, n := range [...]struct {
		name  string
		value int64
	}{{Version, m.Version}, {SchemaVersion, int64(m.SchemaVersion)}} {
		if n.value != 0 {
			at := len(scratch)
			scratch = strconv.AppendInt(scratch, n.value, 10)
			dst = append(dst, Header{n.name, scratch[at:len(scratch):len(scratch)]})
		}
	}
	if !m.Time.IsZero() {
		at := len(scratch)
		scratch = m.Time.UTC().AppendFormat(scratch, time.RFC3339Nano)
		dst = append(dst, Header{Time, scratch[at:len(scratch):len(scratch)]})
	}
	text(ContentType, m.ContentType)
	for name, value := range m.Headers {
		wire, ok := c.wireName(name)
		if !ok {
			continue
		}
		at := len(scratch)
		scratch = append(scratch, value...)
		dst = append(dst, Header{wire, scratch[at:len(scratch):len(scratch)]})
	}
	if c.Lines {
		dst = encodeLines(dst, first)
	}
	return dst, scratch
}

// wireName returns the name under which a header travels; false for one that
// would forge a field of the message.
func (c Codec) wireName(name string) (string, bool) {
	switch name {
	case ID, Type, Topic, Key, Version, SchemaVersion, Time, Encoded:
		return "", false
	case ContentType:
		return EscapePrefix + name, true
	}
	if c.Reserved != nil && c.Reserved(name) || strings.HasPrefix(name, EscapePrefix) {
		return EscapePrefix + name, true
	}
	return name, true
}

// Record is what a broker delivered.
type Record struct {
	Topic   string // the message's topic as far as the broker carries it
	Key     string // the broker's own key, "" if it has none
	Headers []Header
	Payload []byte    // kept in the message, not copied
	Time    time.Time // the broker's time, for records without one of ours
	// Origin names the record's place for ever, such as
	// "kafka:orders/3@1041"; a record without an id gets one made from it.
	Origin string
}

// DecodeError reports a header that cannot be read.
type DecodeError struct {
	Header string // the header's name
	Origin string // the record's place
	Err    error  // why; without the header's value
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("record %s: header %s: %v", e.Origin, e.Header, e.Err)
}

func (e *DecodeError) Unwrap() error { return e.Err }

// Decode returns the message that a record carries. With an error, a
// *[DecodeError] about the first bad header, the message holds everything else
// and always an id. When a name is there twice, the last one counts.
func (c Codec) Decode(r Record) (postrider.Message, error) {
	m := postrider.Message{Topic: r.Topic, Key: r.Key, Payload: r.Payload, Time: r.Time}
	var first error
	if c.Lines {
		r.Headers, first = decodeLines(r.Headers, r.Origin)
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		if err := decodeHeader(&m, h); err != nil && first == nil {
			first = &DecodeError{Header: h.Name, Origin: r.Origin, Err: err}
		}
	}
	if m.ID == "" {
		m.ID = derivedID(r.Origin)
	}
	return m, first
}

func decodeHeader(m *postrider.Message, h *Header) error {
	switch h.Name {
	case ID:
		id := string(h.Value)
		if err := (&postrider.Message{ID: id, Topic: "t"}).Validate(); err != nil || id == "" {
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
	default:
		if m.Headers == nil {
			m.Headers = make(map[string]string, 4)
		}
		m.Headers[strings.TrimPrefix(h.Name, EscapePrefix)] = string(h.Value)
	}
	return nil
}
