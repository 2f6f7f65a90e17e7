package awsbroker

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/asciijson"
	"github.com/postrider/postrider/envelope"
)

// Attributes of the adapter's own, which README.md describes for readers in other languages.
const (
	headersAttribute = "postrider-headers" // a JSON object of the headers that are no attributes
	bodyAttribute    = "postrider-body"    // how the body stands for the payload: base64 or empty
)

const (
	mostAttributes = 10        // of a message
	mostAttrName   = 256       // bytes
	mostID         = 128       // characters of a group's and of a deduplication id
	mostBytes      = 1 << 20   // of a message of SQS, and of a batch
	mostPublished  = 256 << 10 // of a message of SNS unless its topic allows more
	mostEntries    = 10        // of a batch
	emptyBody      = "-"
	hashPrefix     = "sha256."
)

// entry is a message as it is sent.
type entry struct {
	body       string
	attributes map[string]types.MessageAttributeValue
	group      string // "" in a standard queue
	dedup      string // "" in a standard queue
	queue      string // or the topic of SNS
	bytes      int    // that count for the limit
}

// wireCodec is the header table; names and values that SQS does not take travel in
// one attribute.
func wireCodec() envelope.Codec { return envelope.Codec{Binding: envelope.BindingFields} }

// encode returns the entry of m, or the reason why m cannot be sent.
func (s *Sink) encode(w *envelope.Wire, pipe string, m *postrider.Message) (*entry, envelope.Route, error) {
	r, err := s.opts.Route.Of(m)
	if err != nil {
		return nil, r, broker.Unsendable(err, "")
	}
	e := &entry{queue: s.to.name(r.Topic)}
	if err := s.to.problem(e.queue); err != nil {
		if errors.As(err, new(misfit)) {
			return e, r, broker.Outage(err, s.badName, e.queue)
		}
		return e, r, broker.Rejected(err, s.badName, e.queue)
	}
	grouped := false // the group is the key
	if !s.opts.Standard {
		if m.ID == "" {
			return e, r, broker.Rejected(errNoID, codeNoID, e.queue)
		}
		e.group, grouped = groupOf(r.Key, m.ID)
		e.dedup = short(broker.DedupID(pipe, e.queue, m))
	}
	if s.fansOut { // a standard queue behind a FIFO topic does not show the group
		grouped = false
	}
	carried := r.Carries(m, r.Topic, grouped)
	if s.opts.Prefix != "" || isARN(e.queue) || s.fansOut || strings.HasSuffix(r.Topic, fifoSuffix) {
		carried &^= envelope.TopicCarried
	}
	codec := wireCodec()
	if err := codec.Encode(w, m, &r, carried); err != nil {
		return e, r, broker.Unsendable(err, e.queue)
	}
	e.fill(w)
	if e.bytes > s.opts.MaxMessageBytes {
		err := fmt.Errorf("the message has %d bytes with its attributes (binary payloads count a third more), above the limit of %d", e.bytes, s.opts.MaxMessageBytes)
		return e, r, broker.Rejected(err, codeTooLarge, e.queue)
	}
	return e, r, nil
}

// groupOf returns the MessageGroupId of a key: the key where SQS takes it, and its hash
// otherwise; the message's id without a key. The group of a key depends on nothing
// else, or the key's messages would be in two groups, without an order between them.
// same reports that a reader may take the group for the key. If key and id are equal it
// may not: the group of a message without a key looks the same.
func groupOf(key, id string) (group string, same bool) {
	switch {
	case key == "":
		return id, false
	case len(key) > mostID || !printable(key) || strings.HasPrefix(key, hashPrefix):
		return hash(key), false
	}
	return key, key != id
}

// short is an id that SQS takes.
func short(id string) string {
	if len(id) <= mostID {
		return id
	}
	return hash(id)
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hashPrefix + hex.EncodeToString(sum[:])
}

// printable reports whether text has letters, digits and punctuation of ASCII only.
func printable(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] >= 0x7f {
			return false
		}
	}
	return true
}

// fill makes body and attributes of what the codec has written. The fields of
// Postrider and of CloudEvents come first, then the rest by name.
func (e *entry) fill(w *envelope.Wire) {
	var how string
	e.body, how = bodyOf(w.Payload)
	slices.SortFunc(w.Headers, func(a, b envelope.Header) int {
		if pa, pb := own(a.Name), own(b.Name); pa != pb {
			if pa {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	room := mostAttributes
	if how != "" {
		room--
	}
	fits := len(w.Headers) <= room
	for i := range w.Headers {
		fits = fits && allowed(&w.Headers[i])
	}
	if !fits {
		room--
	}
	e.attributes = make(map[string]types.MessageAttributeValue, mostAttributes)
	e.bytes = len(e.body)
	rest := make(map[string]string)
	for i := range w.Headers {
		if h := &w.Headers[i]; room > 0 && allowed(h) {
			e.attribute(h.Name, string(h.Value))
			room--
		} else {
			rest[h.Name] = string(h.Value)
		}
	}
	if how != "" {
		e.attribute(bodyAttribute, how)
	}
	if len(rest) > 0 {
		e.attribute(headersAttribute, asciijson.Of(rest))
	}
}

func own(name string) bool {
	return strings.HasPrefix(name, postrider.ReservedHeaderPrefix) || strings.HasPrefix(name, "ce_") || name == envelope.ContentType
}

func (e *entry) attribute(name, value string) {
	const kind = "String"
	e.attributes[name] = types.MessageAttributeValue{DataType: aws.String(kind), StringValue: aws.String(value)}
	e.bytes += len(name) + len(kind) + len(value)
}

// bodyOf returns a payload as text that SQS carries, and the name of its encoding.
func bodyOf(payload []byte) (body, how string) {
	switch {
	case len(payload) == 0:
		return emptyBody, "empty"
	case text(payload):
		return string(payload), ""
	}
	return base64.StdEncoding.EncodeToString(payload), "base64"
}

// text reports whether SQS carries b: the characters of XML 1.0.
func text(b []byte) bool {
	for len(b) > 0 {
		if c := b[0]; c < utf8.RuneSelf {
			if c < ' ' && c != '\t' && c != '\n' && c != '\r' {
				return false
			}
			b = b[1:]
			continue
		}
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 || r == 0xfffe || r == 0xffff {
			return false
		}
		b = b[n:]
	}
	return true
}

// allowed reports whether a header may be an attribute.
func allowed(h *envelope.Header) bool {
	name := h.Name
	if len(h.Value) == 0 || !text(h.Value) || name == "" || len(name) > mostAttrName || name == headersAttribute || name == bodyAttribute {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	lower := strings.ToLower(name)
	return name[0] != '.' && name[len(name)-1] != '.' && !strings.Contains(name, "..") &&
		!strings.HasPrefix(lower, "aws.") && !strings.HasPrefix(lower, "amazon.")
}

// Preview is [broker.Info].Preview.
func (s *Sink) Preview(pipe string, m *postrider.Message) (broker.Preview, error) {
	var w envelope.Wire
	e, r, err := s.encode(&w, pipe, m)
	p := broker.Preview{Route: r, Headers: w.Headers, Payload: w.Payload, Limit: s.opts.MaxMessageBytes}
	if e != nil {
		p.Destination, p.Key, p.Bytes = e.queue, e.group, e.bytes
	}
	return p, err
}
