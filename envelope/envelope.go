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
	ID            = "postrider-id"             // UUID in canonical text; always
	Type          = "postrider-type"           // what happened; unless empty
	Topic         = "postrider-topic"          // the message's topic; where the broker's name for it differs
	Key           = "postrider-key"            // the unit of order; unless empty or carried as the broker's own key
	Version       = "postrider-version"        // decimal, 1 or more; unless 0
	SchemaVersion = "postrider-schema-version" // decimal, 1 or more; unless 0
	Time          = "postrider-time"           // RFC 3339, UTC, up to nanoseconds; unless zero
	ContentType   = "content-type"             // media type of the payload; unless empty
	Generation    = "postrider-generation"     // decimal, 1 or more; on a message that a person sent again
	Gap           = "postrider-gap"            // versions such as 3,5-7; behind a skipped dead letter
	Encoded       = "postrider-encoded"        // names of percent-encoded headers; where a value does not fit a line
	DataRef       = "postrider-dataref"        // reference of a payload in the database; see package claim
	FrameSize     = "postrider-frame"          // decimal; bytes before the payload in the format Confluent, 0 in others
	EscapePrefix  = "postrider-h-"             // before the name of a user header that is reserved
)

// Header is one header on the wire.
type Header struct {
	Name  string
	Value []byte
}

// Codec encodes and decodes messages. Its zero value suits a broker that reserves
// no header names. It is safe for concurrent use.
type Codec struct {
	// Reserved reports whether the broker gives name a meaning of its own; a
	// user header of that name travels behind [EscapePrefix].
	Reserved func(name string) bool
	// Lines means that the broker carries values as lines of text and would
	// change line breaks, control characters and space at the ends. Such values
	// travel percent-encoded, and [Encoded] names their headers. A name that is not a
	// token (RFC 9110, section 5.6.2) travels behind [EscapePrefix], percent-encoded.
	Lines bool
	// ASCII means, with Lines, that values must be printable ASCII, because servers and
	// clients treat other bytes differently. Other values travel percent-encoded too.
	ASCII bool
	// Fold means that the broker compares header names without case and accepts only
	// tokens (RFC 9110, section 5.6.2). Any other name travels behind
	// [EscapePrefix], percent-encoded.
	Fold bool
	// Binding is the broker's encoding of CloudEvents.
	Binding Binding
	// Foreign describes records of other writers.
	Foreign Foreign
	// Split means that the caller writes [Wire.Prefix] before the payload itself, which saves a copy
	// of the payload. Otherwise Encode puts it there.
	Split bool
}

// Foreign names other writers' headers for the values of [ID], [Type] and [SchemaVersion];
// "" for none. Debezium's outbox event router writes id, and the others in
// headers named in its configuration, often eventType. The format [Debezium] has its schema
// version in the header [SchemaVersion], which needs no name here.
type Foreign struct {
	ID, Type, SchemaVersion string
	// TopicPrefix is removed from the topic of a record that has the header ID:
	// Debezium's is [DebeziumPrefix].
	TopicPrefix string
}

// DebeziumPrefix is the default prefix of the topics of Debezium's outbox event router
// (route.topic.replacement), and DebeziumID is its header.
const (
	DebeziumPrefix = "outbox.event."
	DebeziumID     = "id"
)

// Carried lists the fields that the broker carries outside the headers.
type Carried uint8

// The fields that a record may carry outside the headers.
const (
	TopicCarried Carried = 1 << iota // the broker's topic is the message's topic
	KeyCarried                       // the record has a key, and it is the message's
	KeyOther                         // the record has a key, and it is not the message's
)

// Carries returns the fields that the broker itself carries of a message for
// destination, the broker's own name of it; keys means that its records
// have a key, which is the route's.
func (r *Route) Carries(m *postrider.Message, destination string, keys bool) Carried {
	var c Carried
	if destination == m.Topic {
		c |= TopicCarried
	}
	switch {
	case keys && r.Key == m.Key:
		c |= KeyCarried
	case keys && r.Key != "":
		c |= KeyOther
	}
	return c
}

// Wire is an encoded message. Reuse it for the next one.
type Wire struct {
	Headers []Header
	Prefix  []byte // before the payload, with [Codec.Split]; else empty
	Payload []byte // the message's own unless the format changes it
	scratch []byte // memory of the headers' values
	body    []byte // a changed payload
	clock   clock
}

// clock formats times. Messages that are sent together often have the same second,
// whose text is cached.
type clock struct {
	second int64 // since 1970; 0: none yet
	text   [len("2006-01-02T15:04:05")]byte
}

// append appends t in UTC in the format [time.RFC3339Nano].
func (c *clock) append(b []byte, t time.Time) []byte {
	if s := t.Unix(); s == 0 || s != c.second {
		t = t.UTC()
		at := len(b)
		b = t.AppendFormat(b, time.RFC3339Nano)
		if y := t.Year(); y >= 0 && y <= 9999 { // four digits
			c.second = s
			copy(c.text[:], b[at:])
		}
		return b
	}
	b = append(b, c.text[:]...)
	if ns := t.Nanosecond(); ns != 0 {
		digits := [...]byte{'.', 9: 0}
		for i := 9; i > 0; i-- {
			digits[i] = byte('0' + ns%10)
			ns /= 10
		}
		end := len(digits)
		for digits[end-1] == '0' {
			end--
		}
		b = append(b, digits[:end]...)
	}
	return append(b, 'Z')
}

// Size returns the number of bytes of headers and payload.
func (w *Wire) Size() int {
	n := len(w.Prefix) + len(w.Payload)
	for i := range w.Headers {
		n += len(w.Headers[i].Name) + len(w.Headers[i].Value)
	}
	return n
}

// Encode encodes m into w by the route r. The result is valid until the next Encode
// into w, and shares memory with m. User headers are written in no particular
// order. An error is a *[RouteError]: the format cannot carry the message.
// For [Plain] it allocates nothing once w has grown, unless a header must be escaped.
func (c Codec) Encode(w *Wire, m *postrider.Message, r *Route, carried Carried) error {
	w.Headers, w.scratch, w.Prefix, w.Payload = w.Headers[:0], w.scratch[:0], nil, m.Payload
	switch r.Format {
	case CloudEvents, CloudEventsStructured:
		if err := c.encodeEvent(w, m, r, carried); err != nil {
			return err
		}
	case Debezium:
		if m.Headers[DataRef] != "" {
			return r.misfit("payload", "stays in the database, and a consumer of Debezium's router would read it as empty: send it whole, or in another format")
		}
		w.text(DebeziumID, m.ID)
		w.number(SchemaVersion, int64(m.SchemaVersion))
		w.unframed(m)
		c.userHeaders(w, m, r)
	case Raw:
		if m.Headers[DataRef] != "" {
			return r.misfit("payload", "stays in the database, and the format raw has no header for the reference: send it whole, or in another format")
		}
		w.text(ContentType, m.ContentType)
		c.userHeaders(w, m, r)
	case Confluent:
		if err := w.frame(m, r, c.Split); err != nil {
			return err
		}
		c.fields(w, m, carried)
		c.userHeaders(w, m, r)
	default:
		c.fields(w, m, carried)
		c.userHeaders(w, m, r)
	}
	if c.Lines {
		w.Headers = encodeLines(w.Headers, c.ASCII)
	}
	return nil
}

// text adds a header unless its value is empty.
func (w *Wire) text(name, value string) {
	if value != "" {
		w.add(name, value)
	}
}

func (w *Wire) add(name, value string) {
	at := len(w.scratch)
	w.scratch = append(w.scratch, value...)
	w.Headers = append(w.Headers, Header{name, w.scratch[at:len(w.scratch):len(w.scratch)]})
}

func (w *Wire) number(name string, value int64) {
	if value != 0 {
		at := len(w.scratch)
		w.scratch = strconv.AppendInt(w.scratch, value, 10)
		w.Headers = append(w.Headers, Header{name, w.scratch[at:len(w.scratch):len(w.scratch)]})
	}
}

// fields adds Postrider's own headers.
func (c Codec) fields(w *Wire, m *postrider.Message, carried Carried) {
	w.text(ID, m.ID)
	w.text(Type, m.Type)
	if carried&TopicCarried == 0 {
		w.text(Topic, m.Topic)
	}
	w.key(m.Key, carried)
	w.number(Version, m.Version)
	w.number(SchemaVersion, int64(m.SchemaVersion))
	if !m.Time.IsZero() {
		at := len(w.scratch)
		w.scratch = w.clock.append(w.scratch, m.Time)
		w.Headers = append(w.Headers, Header{Time, w.scratch[at:len(w.scratch):len(w.scratch)]})
	}
	w.text(ContentType, m.ContentType)
}

// key adds the message's key unless the record has the same key. If the record has another
// one, an empty key is written too: otherwise the reader would use the record's.
func (w *Wire) key(key string, carried Carried) {
	switch {
	case carried&KeyCarried != 0:
	case carried&KeyOther != 0:
		w.add(Key, key)
	default:
		w.text(Key, key)
	}
}

// userHeaders adds the headers of the message and of the route, which take precedence.
func (c Codec) userHeaders(w *Wire, m *postrider.Message, r *Route) {
	for name, value := range m.Headers {
		if len(r.Headers) > 0 {
			if _, replaced := r.Headers[name]; replaced {
				continue
			}
		}
		c.userHeader(w, r.Format, name, value)
	}
	for name, value := range r.Headers {
		if c.Reserved != nil && c.Reserved(name) {
			name = EscapePrefix + name
		}
		w.add(name, value) // otherwise written as the operator chose it, case included
	}
}

func (c Codec) userHeader(w *Wire, f Format, name, value string) {
	if f == Raw && strings.HasPrefix(name, postrider.ReservedHeaderPrefix) {
		return // Postrider's own headers, which a raw record does not have
	}
	if wire, ok := c.wireName(f, name); ok {
		w.add(wire, value)
	}
}

// wireName returns the name under which a header travels, and false for a name that
// would forge a field of the message.
func (c Codec) wireName(f Format, name string) (string, bool) {
	switch name {
	case ID, Type, Topic, Key, Version, SchemaVersion, Time, Encoded, FrameSize:
		return "", false
	}
	if c.Binding.isContentType(name) || c.Reserved != nil && c.Reserved(name) || strings.HasPrefix(name, EscapePrefix) || f == Debezium && name == DebeziumID {
		name = EscapePrefix + name
	}
	return c.fit(name), true
}

// fit makes a name acceptable for the broker.
func (c Codec) fit(name string) string {
	switch {
	case c.Fold:
		return foldName(name)
	case c.Lines:
		return tokenName(name)
	}
	return name
}

// Record is what a broker delivered.
type Record struct {
	Topic   string // the message's topic as far as the broker carries it
	Key     string // the broker's own key, "" if it has none
	Headers []Header
	Payload []byte    // kept in the message, not copied
	Time    time.Time // the broker's time, for records without one of ours
	// Origin is the record's permanent position, such as
	// "kafka:orders/3@1041"; the id of a record without one is derived from it.
	Origin string
}

// DecodeError reports a header that cannot be read.
type DecodeError struct {
	Header string // the header's name
	Origin string // the record's position
	Err    error  // why; without the header's value
}

// Error names header and record, never a value.
func (e *DecodeError) Error() string {
	return fmt.Sprintf("record %s: header %s: %v", e.Origin, e.Header, e.Err)
}

// Unwrap returns why the header cannot be read.
func (e *DecodeError) Unwrap() error { return e.Err }
