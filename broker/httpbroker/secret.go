package httpbroker

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The headers of Standard Webhooks.
const (
	headerID        = "webhook-id"        // the message's id
	headerTimestamp = "webhook-timestamp" // when the request was signed, in seconds since 1970
	headerSignature = "webhook-signature" // one signature per secret
)

// Prefixes of secrets and keys, and of the signatures made with them.
const (
	prefixSecret  = "whsec_"
	prefixPrivate = "whsk_"
	prefixPublic  = "whpk_"
	versionHMAC   = "v1"
	versionEd     = "v1a"
)

// Sizes of a symmetric secret in bytes, by the specification.
const minSecret, maxSecret = 24, 64

// Secret signs or verifies. It prints as ***.
type Secret struct {
	hmac    []byte
	private ed25519.PrivateKey
	public  ed25519.PublicKey
}

// String hides the secret.
func (Secret) String() string { return "***" }

// GoString hides the secret.
func (Secret) GoString() string { return "***" }

// ParseSecret parses whsec_BASE64 (24 to 64 random bytes, HMAC-SHA256), whsk_BASE64
// (the 32 bytes of an ed25519 seed: signs and verifies) or whpk_BASE64 (its public
// key: only verifies). The error does not repeat the text.
func ParseSecret(text string) (Secret, error) {
	prefix, encoded, _ := strings.Cut(text, "_")
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || encoded == "" {
		return Secret{}, errors.New("httpbroker: secret: write whsec_ (or whsk_, whpk_) and base64, such as `echo whsec_$(openssl rand -base64 32)` prints")
	}
	switch prefix + "_" {
	case prefixSecret:
		if len(raw) < minSecret || len(raw) > maxSecret {
			return Secret{}, fmt.Errorf("httpbroker: secret: has %d bytes, Standard Webhooks requires %d to %d", len(raw), minSecret, maxSecret)
		}
		return Secret{hmac: raw}, nil
	case prefixPrivate:
		if len(raw) != ed25519.SeedSize {
			return Secret{}, fmt.Errorf("httpbroker: secret: a whsk_ key has %d bytes, not %d", ed25519.SeedSize, len(raw))
		}
		key := ed25519.NewKeyFromSeed(raw)
		public, _ := key.Public().(ed25519.PublicKey)
		return Secret{private: key, public: public}, nil
	case prefixPublic:
		if len(raw) != ed25519.PublicKeySize {
			return Secret{}, fmt.Errorf("httpbroker: secret: a whpk_ key has %d bytes, not %d", ed25519.PublicKeySize, len(raw))
		}
		return Secret{public: raw}, nil
	}
	return Secret{}, errors.New("httpbroker: secret: must begin with whsec_, whsk_ or whpk_")
}

// ParseSecrets parses secrets separated by spaces or line ends: during a
// rotation the new secret and the old one.
func ParseSecrets(text string) ([]Secret, error) {
	var all []Secret
	for _, field := range strings.Fields(text) {
		s, err := ParseSecret(field)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return nil, errors.New("httpbroker: secret: is empty")
	}
	return all, nil
}

// Sign returns the value of the header webhook-signature: one signature per
// secret, separated by spaces.
func Sign(secrets []Secret, id string, at time.Time, payload []byte) (string, error) {
	var b strings.Builder
	for _, s := range secrets {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		switch {
		case s.private != nil:
			b.WriteString(versionEd + ",")
			b.WriteString(base64.StdEncoding.EncodeToString(ed25519.Sign(s.private, signed(id, stamp(at), payload))))
		case s.hmac != nil:
			b.WriteString(versionHMAC + ",")
			b.WriteString(base64.StdEncoding.EncodeToString(s.mac(id, stamp(at), payload)))
		default:
			return "", errors.New("httpbroker: sign: a public key cannot sign: give the whsk_ key")
		}
	}
	return b.String(), nil
}

func stamp(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }

func (s Secret) mac(id, timestamp string, payload []byte) []byte {
	h := hmac.New(sha256.New, s.hmac)
	h.Write([]byte(id + "." + timestamp + ".")) // never fails
	h.Write(payload)
	return h.Sum(nil)
}

func signed(id, timestamp string, payload []byte) []byte {
	text := append([]byte(id), '.')
	text = append(append(text, timestamp...), '.')
	return append(text, payload...)
}

// Reasons why a request is not genuine.
var (
	errUnsigned  = errors.New("webhook-id, webhook-timestamp or webhook-signature is missing or invalid (an id contains no dot)")
	errTooOld    = errors.New("webhook-timestamp is too far from the receiver's clock")
	errSignature = errors.New("no signature matches")
)

// Verify reports whether one of the signatures was made with one of the secrets
// for exactly this id, timestamp (Unix seconds) and payload, at most tolerance away
// from now. The comparison takes constant time. Only the first 16
// signatures are checked.
func Verify(secrets []Secret, id, timestamp, signatures string, payload []byte, now time.Time, tolerance time.Duration) error {
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	// With a dot in the id, another split into id, timestamp and payload could have the same signed text.
	if err != nil || id == "" || strings.Contains(id, ".") || signatures == "" {
		return errUnsigned
	}
	if at := time.Unix(seconds, 0); at.Before(now.Add(-tolerance)) || at.After(now.Add(tolerance)) {
		return errTooOld
	}
	n := 0
	for field := range strings.FieldsSeq(signatures) {
		if n++; n > maxSignatures {
			break
		}
		version, encoded, _ := strings.Cut(field, ",")
		got, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			continue
		}
		for _, s := range secrets {
			if version == versionHMAC && s.hmac != nil && hmac.Equal(got, s.mac(id, timestamp, payload)) {
				return nil
			}
			if version == versionEd && s.public != nil && ed25519.Verify(s.public, signed(id, timestamp, payload), got) {
				return nil
			}
		}
	}
	return errSignature
}

// maxSignatures is the number of signatures of a request that are checked. Each costs a
// pass over the payload, and a sender without a secret could write thousands.
const maxSignatures = 16
