package claim

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/seal"
)

// ErrGone means that the row of a payload no longer exists.
var ErrGone = errors.New("the payload is gone")

// Bodies fetches payloads. [github.com/postrider/postrider/store/pgstore.Bodies]
// is one. It returns ErrGone for a missing payload,
// [seal.ErrErased] for an erased one, and any other error
// if it cannot find out.
type Bodies interface {
	Fetch(ctx context.Context, ref Ref) ([]byte, error)
}

// Next is an [github.com/postrider/postrider/consumer.Opener] that runs after an
// Opener.
type Next interface {
	Open(ctx context.Context, m postrider.Message) (postrider.Message, error)
}

// Opener fetches the payloads of messages. It is a consumer.Opener.
type Opener struct {
	bodies Bodies
	next   Next
}

// NewOpener returns an Opener that fetches from bodies. next, which may be nil,
// opens the message afterwards: a sealed payload is sealed in the database too.
func NewOpener(bodies Bodies, next Next) *Opener { return &Opener{bodies: bodies, next: next} }

// Open returns m with its payload and without the header, or m itself if it
// has its payload. A payload that does not match the reference is seal.ErrTampered.
func (o *Opener) Open(ctx context.Context, m postrider.Message) (postrider.Message, error) {
	if value := m.Headers[envelope.DataRef]; value != "" && len(m.Payload) == 0 {
		payload, err := o.fetch(ctx, value, m.ID)
		if err != nil {
			return m, fmt.Errorf("claim: %w", err)
		}
		m.Payload, m.Headers = payload, maps.Clone(m.Headers)
		delete(m.Headers, envelope.DataRef)
	}
	if o.next != nil {
		return o.next.Open(ctx, m)
	}
	return m, nil
}

func (o *Opener) fetch(ctx context.Context, value, id string) ([]byte, error) {
	ref, err := Parse(value)
	if err != nil {
		return nil, fmt.Errorf("%w: the header %s %w", seal.ErrTampered, envelope.DataRef, err)
	}
	if ref.ID != id {
		return nil, fmt.Errorf("%w: the reference belongs to another message", seal.ErrTampered)
	}
	payload, err := o.bodies.Fetch(ctx, ref)
	if err != nil {
		return nil, err
	}
	if len(payload) != ref.Bytes || sha256.Sum256(payload) != ref.SHA256 {
		return nil, fmt.Errorf("%w: the payload in the database differs from the reference", seal.ErrTampered)
	}
	return payload, nil
}
