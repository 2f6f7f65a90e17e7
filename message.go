package postrider

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of a message, checked by [Message.Validate] before any I/O and again
// by the constraints of the outbox table. Sizes are in bytes.
const (
	MaxTopicLen       = 255
	MaxKeyLen         = 512
	MaxTypeLen        = 255
	MaxContentTypeLen = 255
	MaxHeaders        = 64
	MaxHeaderBytes    = 16 << 10 // names and values together
	MaxPayload        = 16 << 20
)

// ReservedHeaderPrefix starts the names of headers that only Postrider sets.
const ReservedHeaderPrefix = "postrider-"

// ErasedHeader is the header of a message whose payload and other headers were
// erased in the outbox before it was sent: its value is the time, with "; retention"
// behind it where no person but their age removed them, and the payload is empty.
// Only a pipe that begins in the past sends such messages.
const ErasedHeader = "erased-at"

// Message is what travels from a transaction to a consumer.
//
// The zero value of every field except Topic is valid. A Message given to a
// sink or a handler must not be changed: its Payload may share memory with its
// neighbours in a batch.
type Message struct {
	// ID identifies the message for ever and everywhere: consumers deduplicate
	// on it. A UUID in canonical text; empty means that Enqueue makes a UUIDv7.
	ID string
	// Topic says where the message goes: the broker's topic, subject, exchange
	// or stream of that name unless a route says otherwise. Required.
	Topic string
	// Key is the unit of order: messages of one key arrive in the order in
	// which they were enqueued. Empty asks for no order.
	Key string
	// Type says what happened; consumers dispatch on it.
	Type string
	// Payload is carried as bytes and never re-encoded.
	Payload []byte
	// ContentType is the media type of Payload, "" if unknown.
	ContentType string
	// Headers travel beside the payload. Names are lower-case by convention
	// and must not start with [ReservedHeaderPrefix].
	Headers map[string]string
	// Version is the message's position in its key's stream, 1, 2, 3 ...;
	// 0 means that the application does not number its messages.
	Version int64
	// SchemaVersion is the version of the payload's schema, 0 if unversioned.
	SchemaVersion int32
	// Time is when the message was enqueued, by the database's clock. Set by
	// the database; Enqueue ignores it.
	Time time.Time
	// NotBefore delays delivery until the database's clock has passed it. The
	// message takes its place in its key's order when it becomes due.
	NotBefore time.Time

	err error // set by JSON, reported by Validate
}

// JSON returns a message of typ about key in topic whose payload is v in JSON.
// An encoding error is kept in the message and reported by Enqueue, so that the
// call site stays one expression.
func JSON(topic, key, typ string, v any) Message {
	payload, err := json.Marshal(v)
	return Message{
		Topic: topic, Key: key, Type: typ, Payload: payload,
		ContentType: "application/json", err: err,
	}
}

// ErrInvalid is matched by every error that Validate returns.
var ErrInvalid = errors.New("invalid message")

// LimitError says which field of a message breaks which limit.
// It matches [ErrInvalid].
type LimitError struct {
	Field  string // "topic", "payload", "headers" ...
	Reason string // "is 17 MiB, the limit is 16 MiB"
	Route  string // the route whose limit it is; "" for a limit of every message
}

// Error names the field, the limit and the route whose limit it is.
func (e *LimitError) Error() string {
	if e.Route != "" {
		return e.Field + " " + e.Reason + " (route " + e.Route + ")"
	}
	return e.Field + " " + e.Reason
}

func limitError(field, reason string) error { return &LimitError{Field: field, Reason: reason} }

// Is makes errors.Is(err, ErrInvalid) true.
func (e *LimitError) Is(target error) bool { return target == ErrInvalid }

// Validate reports the first limit that the message breaks, as a *[LimitError]
// or as the error of the encoder given to [JSON].
func (m *Message) Validate() error {
	if m.err != nil {
		return fmt.Errorf("%w: payload cannot be encoded: %w", ErrInvalid, m.err)
	}
	switch {
	case m.ID != "" && !validUUID(m.ID):
		return limitError("id", "must be a UUID in canonical text such as 01890a5d-ac96-774b-bcce-b302099a8057")
	case m.Topic == "":
		return limitError("topic", "is empty")
	case m.Version < 0:
		return limitError("version", "is negative")
	case m.SchemaVersion < 0:
		return limitError("schema version", "is negative")
	case len(m.Payload) > MaxPayload:
		return limitError("payload", fmt.Sprintf("is %d bytes, the limit is %d", len(m.Payload), MaxPayload))
	}
	for _, f := range []struct {
		name, value string
		max         int
	}{
		{"topic", m.Topic, MaxTopicLen},
		{"key", m.Key, MaxKeyLen},
		{"type", m.Type, MaxTypeLen},
		{"content type", m.ContentType, MaxContentTypeLen},
	} {
		if err := checkText(f.name, f.value, f.max); err != nil {
			return err
		}
	}
	return m.validateHeaders()
}

func (m *Message) validateHeaders() error {
	if len(m.Headers) > MaxHeaders {
		return limitError("headers", fmt.Sprintf("are %d, the limit is %d", len(m.Headers), MaxHeaders))
	}
	size := 0
	for name, value := range m.Headers {
		size += len(name) + len(value)
		switch {
		case name == "":
			return limitError("headers", "have an empty name")
		case strings.HasPrefix(strings.ToLower(name), ReservedHeaderPrefix):
			return limitError(fmt.Sprintf("header %q", name), "uses the reserved prefix "+ReservedHeaderPrefix)
		case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }):
			return limitError(fmt.Sprintf("header %q", name), "has a character other than printable ASCII without space and colon")
		case strings.ContainsAny(value, "\r\n"):
			return limitError(fmt.Sprintf("header %q", name), "has a line break in its value")
		}
		if err := checkText("header "+name, value, MaxHeaderBytes); err != nil {
			return err
		}
	}
	if size > MaxHeaderBytes {
		return limitError("headers", fmt.Sprintf("are %d bytes, the limit is %d", size, MaxHeaderBytes))
	}
	return nil
}

func checkText(field, s string, limit int) error {
	switch {
	case len(s) > limit:
		return limitError(field, fmt.Sprintf("is %d bytes, the limit is %d", len(s), limit))
	case strings.IndexByte(s, 0) >= 0:
		return limitError(field, "has a zero byte")
	case !utf8.ValidString(s):
		return limitError(field, "is not valid UTF-8")
	}
	return nil
}

// validUUID accepts the 8-4-4-4-12 form in lower or upper case hexadecimal.
func validUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
				return false
			}
		}
	}
	return true
}

// Size is the number of bytes that the message counts for in windows and
// batch limits: payload, texts and headers.
func (m *Message) Size() int {
	n := len(m.Payload) + len(m.ID) + len(m.Topic) + len(m.Key) + len(m.Type) + len(m.ContentType)
	for k, v := range m.Headers {
		n += len(k) + len(v)
	}
	return n
}
