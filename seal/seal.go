// Package seal encrypts payloads before they reach the outbox table and opens
// them at the consumer. The table with its backups, the
// relay, the broker and the dead letters have only ciphertext.
//
//	ring, err := seal.NewRing(current, older...)
//	box := seal.New(ring, nil)
//	ob := outbox.New(dialect.Postgres, &outbox.Options{Sealer: box})
//	c := consumer.New(source, db, &consumer.Options{Name: "billing", Opener: box})
//
// Only the payload is sealed. Topic, key, type and headers stay readable: they
// route the message. The cipher is AES-256-GCM with a random nonce; a message's
// id, key and type are authenticated with its payload, so that it cannot
// pass for another message.
//
// On the wire the payload is the nonce (12 bytes), the ciphertext and the tag
// (16 bytes), and two headers are added: [HeaderAlgorithm] and [HeaderKey]. The
// additional data are the texts "postrider-seal-1", algorithm, key id, message
// id in lower case, key and type, each behind its length in bytes as a 32-bit
// big-endian number.
package seal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/postrider/postrider"
)

// The headers of a sealed message.
const (
	HeaderAlgorithm = "seal-algorithm" // algorithm of a sealed payload: A256GCM
	HeaderKey       = "seal-key"       // id of the key of a sealed payload
)

// Algorithm is the one cipher in use: AES-256-GCM, nonce in front.
const Algorithm = "A256GCM"

// Overhead is the number of bytes that sealing adds to a payload.
const Overhead = 12 + 16

// Errors that callers handle. Errors of [Keys] are wrapped too.
var (
	// ErrUnknownKey: no key with this id is configured. Adding the key helps.
	ErrUnknownKey = errors.New("unknown key")
	// ErrErased: the key was destroyed on purpose, and the payload with it.
	ErrErased = errors.New("the key was destroyed: the payload is erased")
	// ErrTampered: the payload does not match the message's id, key and type under
	// its key. A retry cannot help.
	ErrTampered = errors.New("the message was changed after it was sealed, or sealed with another key of that id")
	// ErrNotSealed: the message is plain, and plain messages are refused.
	ErrNotSealed = errors.New("the message is not sealed")
	// ErrSealed: the message to be sealed is sealed already.
	ErrSealed = errors.New("the message is sealed already: open it first")
)

// Keys finds keys. It must be safe for concurrent use. Its methods are called
// once per message: an implementation that asks a server should cache the
// answers. Its errors must not contain a secret.
//
// [Ring] is a fixed set. With a key per person, found for instance by the message's key,
// erasing a person is the deletion of one key: return [ErrErased] then.
type Keys interface {
	// SealingKey returns the key for a message that is about to be written.
	SealingKey(ctx context.Context, m *postrider.Message) (Key, error)
	// OpeningKey returns the key with this id, ErrUnknownKey or ErrErased. Any
	// other error means that the keys are unreachable now.
	OpeningKey(ctx context.Context, id string, m *postrider.Message) (Key, error)
}

// Options configures a Box. nil means all defaults.
type Options struct {
	// AllowPlain lets Open pass unsealed messages: while producers
	// begin to seal, or if only some do. Otherwise such a message is ErrNotSealed,
	// so that write access to the broker does not suffice to inject one.
	AllowPlain bool
}

// A Box seals and opens messages. It is safe for concurrent use.
type Box struct {
	keys Keys
	opts Options
}

// New returns a Box with these keys. It does no I/O. opts may be nil.
func New(keys Keys, opts *Options) *Box {
	b := &Box{keys: keys}
	if opts != nil {
		b.opts = *opts
	}
	return b
}

// Seal returns m with its payload encrypted and its headers extended; m itself
// is not changed. m needs its ID. The error is of the Keys, or ErrSealed.
func (b *Box) Seal(ctx context.Context, m postrider.Message) (postrider.Message, error) {
	if _, sealed := m.Headers[HeaderAlgorithm]; sealed {
		return postrider.Message{}, fmt.Errorf("seal: %w", ErrSealed)
	}
	if m.ID == "" {
		return postrider.Message{}, errors.New("seal: the message has no id yet")
	}
	key, err := b.keys.SealingKey(ctx, &m)
	if err == nil {
		err = key.check()
	}
	if err != nil {
		return postrider.Message{}, fmt.Errorf("seal: key for a new message: %w", err)
	}
	m.Payload = key.aead.Seal(nil, nil, m.Payload, additional(key.id, &m))
	headers := make(map[string]string, len(m.Headers)+2)
	maps.Copy(headers, m.Headers)
	headers[HeaderAlgorithm], headers[HeaderKey] = Algorithm, key.id
	m.Headers = headers
	return m, nil
}

// Open returns m as it was before Seal; m itself is not changed. On error, which
// contains nothing of the payload, it returns no message. See the errors of
// this package.
func (b *Box) Open(ctx context.Context, m postrider.Message) (postrider.Message, error) {
	algorithm, sealed := m.Headers[HeaderAlgorithm]
	id := m.Headers[HeaderKey]
	switch {
	case !sealed && b.opts.AllowPlain && id == "":
		return m, nil
	case !sealed:
		return postrider.Message{}, fmt.Errorf("seal: message %s: %w", m.ID, ErrNotSealed)
	case algorithm != Algorithm:
		return postrider.Message{}, fmt.Errorf("seal: message %s has an unknown seal algorithm: upgrade this program: %w", m.ID, ErrUnknownKey)
	}
	key, err := b.keys.OpeningKey(ctx, id, &m)
	if err == nil {
		err = key.check()
	}
	if err == nil && key.id != id {
		err = fmt.Errorf("the key source returned key %q instead", key.id)
	}
	if err != nil {
		return postrider.Message{}, &KeyError{ID: id, Err: err}
	}
	payload, err := key.aead.Open(nil, nil, m.Payload, additional(id, &m))
	if err != nil {
		return postrider.Message{}, fmt.Errorf("seal: message %s, key %q: %w", m.ID, id, ErrTampered)
	}
	m.Payload = payload
	m.Headers = maps.Clone(m.Headers)
	delete(m.Headers, HeaderAlgorithm)
	delete(m.Headers, HeaderKey)
	if len(m.Headers) == 0 {
		m.Headers = nil
	}
	return m, nil
}

// KeyError has the id of a key that could not be found, and the reason:
// ErrUnknownKey, ErrErased or an error of the Keys.
type KeyError struct {
	ID  string
	Err error
}

// Error names the key and why it is missing.
func (e *KeyError) Error() string {
	s := fmt.Sprintf("seal: key %q: %v", e.ID, e.Err)
	if errors.Is(e.Err, ErrUnknownKey) {
		s += ": add it to the keys of this consumer"
	}
	return s
}

// Unwrap returns the reason.
func (e *KeyError) Unwrap() error { return e.Err }

// additional returns the data that is authenticated beside the payload. It omits the
// topic, which a route may change.
func additional(keyID string, m *postrider.Message) []byte {
	id := strings.ToLower(m.ID)
	fields := [...]string{"postrider-seal-1", Algorithm, keyID, id, m.Key, m.Type}
	size := 4 * len(fields)
	for _, f := range fields {
		size += len(f)
	}
	b := make([]byte, 0, size)
	for _, f := range fields {
		b = binary.BigEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	return b
}
