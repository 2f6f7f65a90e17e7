package envelope

import (
	"errors"

	"github.com/postrider/postrider"
)

// Framing is where the id of a schema travels in the format [Confluent].
type Framing uint8

// The framings.
const (
	FrameID   Framing = iota // the schema's id, before the payload
	FrameGUID                // the schema's GUID, in the header [SchemaGUID]
	Framed                   // the writer has put the schema's id before the payload
)

// SchemaGUID is the header of [FrameGUID]: the byte 1, 16 bytes of the schema's GUID, and
// of a Protobuf schema the index of the message.
const SchemaGUID = "__value_schema_id"

// Schema names the schema of a payload in a registry.
type Schema struct {
	Framing Framing
	Subject string
	// Version is the registry's version of the subject, 1 or more.
	Version int32
	// Record is the full name of the payload's type. It finds the message of a Protobuf
	// schema that has several.
	Record string
}

// Frame is what the readers of a registry's format need beside the payload.
type Frame struct {
	Prefix []byte // before the payload
	GUID   []byte // the value of the header SchemaGUID; empty: none
	Inside int    // bytes of a frame that the payload begins with
}

// frameMost bounds the bytes before a payload: an id, and the index of a message nested
// in 50 others.
const frameMost = 5 + 5*51

// frame adds the payload's frame.
func (w *Wire) frame(m *postrider.Message, r *Route, split bool) error {
	switch f := r.Frame; {
	case len(m.Headers) > 0 && m.Headers[DataRef] != "":
		return r.misfit("payload", "stays in the database, and the format confluent has no place for the reference: send it whole, or in another format")
	case f == nil:
		return r.misfit("payload", "has no schema id: the format confluent needs a registry (--registry, or registry.Client in Go)")
	case len(f.GUID) > 0:
		w.Headers = append(w.Headers, Header{SchemaGUID, f.GUID})
	default:
		if split {
			w.Prefix = f.Prefix
		} else if len(f.Prefix) > 0 {
			w.body = append(append(w.body[:0], f.Prefix...), m.Payload...)
			w.Payload = w.body
		}
		w.number(FrameSize, int64(len(f.Prefix)+f.Inside))
	}
	return nil
}

// unframed marks a payload that a reader could take for a framed one.
func (w *Wire) unframed(m *postrider.Message) {
	if len(m.Payload) >= 5 && m.Payload[0] == 0 {
		w.add(FrameSize, "0")
	}
}

var errFrame = errors.New("must be the size of a schema registry's frame, with which the payload begins")

// unframe removes the frame from a payload.
func unframe(m *postrider.Message, size []byte) error {
	n, err := decimal(size, 32)
	if err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	if n < 5 || n > frameMost || n > int64(len(m.Payload)) || m.Payload[0] != 0 {
		return errFrame
	}
	m.Payload = m.Payload[n:]
	return nil
}
