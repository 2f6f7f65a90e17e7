package pubsubbroker

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/asciijson"
	"github.com/postrider/postrider/envelope"
)

// The service's limits.
const (
	mostBytes      = 10_000_000 // of a request and of a message
	mostMessages   = 1000       // of a request
	mostAttributes = 100        // of a message
	mostName       = 256        // bytes of an attribute's name
	mostValue      = 1024       // bytes of an attribute's value
	mostKey        = 1024       // bytes of an ordering key
	overhead       = 1024       // of a request beside its messages
)

// headersAttribute begins the names of the attributes that carry, one after the other, a
// JSON object of the headers that are no attributes. README.md describes it.
const headersAttribute = "postrider-headers-"

// emptyAttribute stands in a message that has neither payload nor headers otherwise:
// Pub/Sub takes none.
const emptyAttribute = "postrider-body"

const hashPrefix = "sha256."

// entry is a message as it is sent.
type entry struct {
	topic string // its name within the project
	msg   *pubsubpb.PubsubMessage
	bytes int
}

// wireCodec has the names of Google's CloudEvents binding: ce-id.
func wireCodec() envelope.Codec { return envelope.Codec{Binding: envelope.BindingAMQPDash} }

var errTopic = errors.New("a topic's name has 3 to 255 letters, digits and -_.~+%, begins with a letter and not with goog: use a route with such a topic")

// problem returns the fault of a name of a topic or subscription.
func problem(name string) error {
	if len(name) < 3 || len(name) > 255 || strings.HasPrefix(name, "goog") || !letter(name[0]) {
		return errTopic
	}
	for i := range len(name) {
		if c := name[i]; !letter(c) && (c < '0' || c > '9') && !strings.ContainsRune("-_.~+%", rune(c)) {
			return errTopic
		}
	}
	return nil
}

var (
	projectShape = regexp.MustCompile(`^([a-z][a-z0-9.-]*:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$|^[0-9]+$`)
	errProject   = errors.New("the project must be a project's id (6 to 30 lower-case letters, digits and hyphens, after a letter, without a hyphen at the end) or its number")
)

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// encode returns the entry of m, or the reason why m cannot be sent.
func (s *Sink) encode(w *envelope.Wire, m *postrider.Message) (*entry, envelope.Route, error) {
	r, err := s.opts.Route.Of(m)
	if err != nil {
		return nil, r, broker.Unsendable(err, "")
	}
	e := &entry{topic: s.opts.Prefix + r.Topic, msg: &pubsubpb.PubsubMessage{}}
	if err := problem(e.topic); err != nil {
		return e, r, broker.Rejected(err, codeTopicName, e.topic)
	}
	name, same := orderingKey(r.Key)
	e.msg.OrderingKey = name
	carried := r.Carries(m, r.Topic, same)
	carried &^= envelope.TopicCarried // a subscription does not name its topic
	if err := s.codec.Encode(w, m, &r, carried); err != nil {
		return e, r, broker.Unsendable(err, e.topic)
	}
	if err := e.fill(w); err != nil {
		return e, r, broker.Rejected(err, codeAttributes, e.topic)
	}
	if e.bytes > mostBytes-overhead {
		err := fmt.Errorf("the message has %d bytes with its attributes, above the limit of %d", e.bytes, mostBytes-overhead)
		return e, r, broker.Rejected(err, codeTooLarge, e.topic)
	}
	return e, r, nil
}

// orderingKey returns the ordering key of a key: the key where the service takes it, and
// its hash otherwise. same reports that a reader may take it for the key.
func orderingKey(key string) (name string, same bool) {
	if len(key) <= mostKey && utf8.ValidString(key) && !strings.HasPrefix(key, hashPrefix) {
		return key, true
	}
	sum := sha256.Sum256([]byte(key))
	return hashPrefix + hex.EncodeToString(sum[:]), false
}

// fill makes data and attributes of what the codec has written.
func (e *entry) fill(w *envelope.Wire) error {
	e.msg.Data = bytes.Clone(w.Payload) // the wire is used again
	e.msg.Attributes = make(map[string]string, len(w.Headers))
	e.bytes = len(e.msg.Data) + len(e.msg.OrderingKey) + 64
	rest := make(map[string]string)
	for i := range w.Headers {
		if h := &w.Headers[i]; allowed(h) {
			e.attribute(h.Name, string(h.Value))
		} else {
			rest[h.Name] = string(h.Value)
		}
	}
	if len(rest) > 0 || len(e.msg.Attributes) > mostAttributes {
		if len(e.msg.Attributes) > mostAttributes-10 { // the most travel together then
			for name, value := range e.msg.Attributes {
				if !own(name) {
					rest[name] = value
					delete(e.msg.Attributes, name)
				}
			}
		}
		text := asciijson.Of(rest)
		for n := 0; len(text) > 0; n++ {
			part := text[:min(len(text), mostValue)]
			e.attribute(headersAttribute+strconv.Itoa(n), part)
			text = text[len(part):]
		}
	}
	if len(e.msg.Data) == 0 && len(e.msg.Attributes) == 0 {
		e.attribute(emptyAttribute, "empty")
	}
	if len(e.msg.Attributes) > mostAttributes {
		return fmt.Errorf("the headers need %d attributes, Pub/Sub takes %d", len(e.msg.Attributes), mostAttributes)
	}
	return nil
}

func own(name string) bool {
	return strings.HasPrefix(name, postrider.ReservedHeaderPrefix) || strings.HasPrefix(name, "ce-") || name == envelope.ContentType
}

func (e *entry) attribute(name, value string) {
	e.msg.Attributes[name] = value
	e.bytes += len(name) + len(value) + 16
}

// allowed reports whether a header may be an attribute.
func allowed(h *envelope.Header) bool {
	return h.Name != "" && len(h.Name) <= mostName && utf8.ValidString(h.Name) && !strings.HasPrefix(strings.ToLower(h.Name), "goog") &&
		!strings.HasPrefix(h.Name, headersAttribute) && len(h.Value) <= mostValue && utf8.Valid(h.Value)
}

// Preview is [broker.Info].Preview.
func (s *Sink) Preview(_ string, m *postrider.Message) (broker.Preview, error) {
	var w envelope.Wire
	e, r, err := s.encode(&w, m)
	p := broker.Preview{Route: r, Headers: w.Headers, Payload: w.Payload, Limit: mostBytes - overhead}
	if e != nil {
		p.Destination, p.Key, p.Bytes = e.topic, e.msg.OrderingKey, e.bytes
	}
	return p, err
}
