package envelope

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/postrider/postrider"
)

// data adds the payload by section 3.1 of the JSON format: as a JSON value or a
// string if that preserves its bytes, otherwise as data_base64. Types
// such as application/vnd.order+json are data_base64 too: the Go and Java SDKs expect a
// string as their data, and refuse an object.
func (e *event) data() {
	p := e.m.Payload
	if len(p) == 0 {
		return
	}
	switch {
	case isPlainJSON(e.m.ContentType) && isValue(p):
		e.body = append(e.body, `,"data":`...)
		e.body = append(e.body, p...)
	case isString(e.m.ContentType) && !isPlainJSON(e.m.ContentType) && utf8.Valid(p):
		e.body = append(e.body, `,"data":`...)
		e.body = appendString(e.body, string(p))
	default:
		e.body = append(e.body, `,"data_base64":"`...)
		e.body = base64.StdEncoding.AppendEncode(e.body, p)
		e.body = append(e.body, '"')
	}
}

// mediaType returns a content type without its parameters, in lower case.
func mediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// isJSON reports whether a content type has the form */json or */*+json.
func isJSON(contentType string) bool {
	_, sub, ok := strings.Cut(mediaType(contentType), "/")
	return ok && (sub == "json" || strings.HasSuffix(sub, "+json"))
}

// isPlainJSON reports whether every SDK treats a content type as JSON.
func isPlainJSON(contentType string) bool {
	media := mediaType(contentType)
	return media == "application/json" || media == "text/json"
}

// isString reports whether a content type is text.
func isString(contentType string) bool {
	media := mediaType(contentType)
	return strings.HasPrefix(media, "text/") || media == "application/xml" || strings.HasSuffix(media, "+xml")
}

// isValue reports whether p is a JSON value that survives encoding byte for byte.
func isValue(p []byte) bool {
	const space = " \t\r\n"
	return strings.IndexByte(space, p[0]) < 0 && strings.IndexByte(space, p[len(p)-1]) < 0 && utf8.Valid(p) && json.Valid(p)
}

// appendString appends s, which is valid UTF-8, as a JSON string.
func appendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

var (
	errNotEvent   = errors.New("announces a CloudEvent in JSON, but the payload is not one")
	errNotBase64  = errors.New("is not Base64")
	errNotScalar  = errors.New("is not a string, a number or a boolean")
	errNotVersion = errors.New("is not 1.0, the supported version of CloudEvents")
)

// found is the state of decoding an event.
type found struct {
	m                   *postrider.Message
	id, source, subject string
}

func (c Codec) decodeBinary(m *postrider.Message, r *Record) error {
	f := found{m: m}
	var first error
	err := c.decodeHeaders(m, r, func(h *Header) bool {
		name, is := c.Binding.attribute(h.Name)
		if !is {
			return false
		}
		value, err := c.Binding.original(string(h.Value))
		if err == nil {
			err = f.attribute(name, value)
		}
		if err != nil && first == nil {
			first = &DecodeError{Header: h.Name, Origin: r.Origin, Err: err}
		}
		return true
	})
	f.finish()
	if first == nil {
		first = err
	}
	return first
}

func (c Codec) decodeStructured(m *postrider.Message, r *Record) error {
	bad := func(name string, err error) error { return &DecodeError{Header: name, Origin: r.Origin, Err: err} }
	var members map[string]json.RawMessage
	if err := json.Unmarshal(r.Payload, &members); err != nil || members == nil {
		_ = c.decodeHeaders(m, r, func(*Header) bool { return false })
		return bad(ContentType, errNotEvent)
	}
	f := found{m: m}
	first := c.decodeHeaders(m, r, func(h *Header) bool { return h.Name == ContentType })
	for name, raw := range members {
		if name == "data" || name == "data_base64" {
			continue
		}
		value, err := scalar(raw)
		if err == nil {
			err = f.attribute(name, value)
		}
		if err != nil && first == nil {
			first = bad("attribute "+name, err)
		}
	}
	f.finish()
	payload, err := dataOf(m, members)
	if m.Payload = payload; err != nil && first == nil {
		first = bad("data_base64", err)
	}
	return first
}

// scalar returns an attribute's value in its canonical string form.
func scalar(raw json.RawMessage) (string, error) {
	switch raw[0] {
	case '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	case '{', '[':
		return "", errNotScalar
	case 'n': // null: not set
		return "", nil
	}
	return string(raw), nil
}

func dataOf(m *postrider.Message, members map[string]json.RawMessage) ([]byte, error) {
	if raw, ok := members["data_base64"]; ok && !bytes.Equal(raw, []byte("null")) {
		var p []byte
		if json.Unmarshal(raw, &p) != nil {
			return raw, errNotBase64
		}
		return p, nil
	}
	raw, ok := members["data"]
	switch {
	case !ok:
		return nil, nil
	case m.ContentType == "":
		m.ContentType = "application/json" // section 3.1.2
	case !isJSON(m.ContentType) && raw[0] == '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return []byte(s), err
	}
	return raw, nil
}

// attribute decodes one attribute. An empty value counts as missing.
func (f *found) attribute(name, value string) error {
	if value == "" {
		return nil
	}
	m := f.m
	switch name {
	case "specversion":
		if value != "1.0" {
			return errNotVersion
		}
	case "id":
		f.id = value
	case "source":
		f.source = value
	case "subject":
		f.subject = value
	case "type":
		m.Type = value
	case "datacontenttype":
		m.ContentType = value
	case "dataschema":
		setHeader(m, EventDataSchema, value)
	case "time":
		return Codec{}.decodeHeader(m, &Header{Time, []byte(value)})
	case "partitionkey":
		m.Key = value
	case "sequence", "schemaversion":
		f.number(name, value)
	case "dataref":
		if strings.HasPrefix(value, RefScheme) {
			name = DataRef
		}
		setHeader(m, name, value)
	default:
		if !isAttribute(name) {
			name = "ce-" + name
		}
		setHeader(m, name, value)
	}
	return nil
}

// number decodes an attribute that other writers may use differently: a value that is not
// a number above 0 stays among the headers.
func (f *found) number(name, value string) {
	switch n, err := decimal([]byte(value), 64); {
	case err == nil && n > 0 && name == "sequence":
		f.m.Version = n
	case err == nil && n > 0 && n <= 1<<31-1 && name == "schemaversion":
		f.m.SchemaVersion = int32(n)
	default:
		setHeader(f.m, name, value)
	}
}

// finish sets the fields that depend on several attributes.
func (f *found) finish() {
	m := f.m
	switch {
	case isUUID(f.id):
		m.ID = f.id
	case f.id != "": // source and id together identify an event
		m.ID = derivedID("ce:" + f.source + "\x00" + f.id)
		setHeader(m, EventID, f.id)
	}
	if f.source != "" && f.source != defaultSource(m.Topic) {
		setHeader(m, EventSource, f.source)
	}
	if f.subject != "" && f.subject != m.Key {
		setHeader(m, EventSubject, f.subject)
	}
}
