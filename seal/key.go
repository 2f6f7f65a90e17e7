package seal

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/postrider/postrider"
)

// SecretSize is the length of a key's secret in bytes.
const SecretSize = 32

// MaxKeyID is the greatest length of a key's id in bytes.
const MaxKeyID = 128

// A Key is a secret with a public name. Printing it shows the name only.
//
// One key seals at most 2^32 messages safely (with random nonces of 96 bits):
// at 1,000 messages per second that is 49 days. Rotate earlier.
type Key struct {
	id   string
	aead cipher.AEAD // the secret itself is not kept
}

// NewKey returns a key with a secret of 32 random bytes. Its id is sent in clear text with
// each message: 1 to 128 printable ASCII characters without space, no personal data.
func NewKey(id string, secret []byte) (Key, error) {
	if id == "" || len(id) > MaxKeyID || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return Key{}, fmt.Errorf("seal: a key's id must be 1 to %d printable ASCII characters without space", MaxKeyID)
	}
	if len(secret) != SecretSize {
		return Key{}, fmt.Errorf("seal: key %q: the secret must have %[3]d bytes (got %[2]d)", id, len(secret), SecretSize)
	}
	if strings.Count(string(secret), string(secret[:1])) == SecretSize {
		return Key{}, fmt.Errorf("seal: key %q: all bytes of the secret are equal: make it of random bytes", id)
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return Key{}, fmt.Errorf("seal: key %q: %w", id, err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return Key{}, fmt.Errorf("seal: key %q: %w", id, err)
	}
	return Key{id: id, aead: aead}, nil
}

// ParseKey parses a key in the form "ID:SECRET" with the secret in standard base64, for
// instance from an environment variable or a mounted file. Errors do not repeat it.
func ParseKey(text string) (Key, error) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return Key{}, errors.New("seal: a key must be written as ID:SECRET")
	}
	secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text[at+1:]))
	if err != nil || len(secret) != SecretSize { // the error omits the id, which may be the secret in the wrong place
		return Key{}, fmt.Errorf("seal: a key must be written as ID:SECRET: the secret is not base64 of %d bytes", SecretSize)
	}
	return NewKey(text[:at], secret)
}

// ID is the key's public name.
func (k Key) ID() string { return k.id }

// String returns the public name, also in a log line.
func (k Key) String() string { return "key " + k.id }

// GoString returns the public name too.
func (k Key) GoString() string { return fmt.Sprintf("seal.Key(%q)", k.id) }

func (k Key) check() error {
	if k.aead == nil {
		return errors.New("the key is empty: use NewKey")
	}
	return nil
}

// A Ring is a fixed set of keys: one seals, all of them open. To rotate, first give
// the new key to every consumer, beside the others. Then make it the current key of
// the writers. Remove the old key when no message that it sealed can be delivered
// again (retention of outbox and broker, dead letters, archives).
type Ring struct {
	current Key
	byID    map[string]Key
}

// NewRing returns a ring that seals with current and opens with all.
func NewRing(current Key, others ...Key) (*Ring, error) {
	r := &Ring{current: current, byID: make(map[string]Key, 1+len(others))}
	for _, k := range append([]Key{current}, others...) {
		if err := k.check(); err != nil {
			return nil, fmt.Errorf("seal: %w", err)
		}
		if _, twice := r.byID[k.id]; twice {
			return nil, fmt.Errorf("seal: duplicate key id %q", k.id)
		}
		r.byID[k.id] = k
	}
	return r, nil
}

// SealingKey returns the current key.
func (r *Ring) SealingKey(context.Context, *postrider.Message) (Key, error) { return r.current, nil }

// OpeningKey returns the key with this id, or ErrUnknownKey.
func (r *Ring) OpeningKey(_ context.Context, id string, _ *postrider.Message) (Key, error) {
	k, ok := r.byID[id]
	if !ok {
		return Key{}, ErrUnknownKey
	}
	return k, nil
}
