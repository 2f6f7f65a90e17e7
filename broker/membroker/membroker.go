// Package membroker is a broker in memory, for tests, demos and as the model
// that package brokertest is checked against. It keeps every rule of package
// broker, counts nothing as delivered that is not in its log, and does what a
// fault hook tells it. It starts no goroutine, so it runs under testing/synctest.
package membroker

import (
	"bytes"
	"context"
	"errors"
	"hash/fnv"
	"maps"
	"sync"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// Options of New. The zero value is a broker with 8 partitions per topic that
// makes topics as they are used.
type Options struct {
	// Partitions of each topic, 8 if zero.
	Partitions int
	// Topics that exist. nil: every topic exists.
	Topics []string
	// Route says what becomes of each message. The broker has no wire of its own:
	// a routed message is encoded as for a broker with fields, the bytes stand in
	// its Entry, and receivers get what they decode to. nil: every message is
	// kept as it is.
	Route envelope.Router
	// MaxMessageBytes bounds [postrider.Message.Size]; 0: no limit.
	MaxMessageBytes int
}

// Outcome is what a fault hook decides for one message. The zero Outcome
// accepts it.
type Outcome struct {
	// Err is answered instead of an acknowledgement, best classified by the
	// wrappers of package broker.
	Err error
	// Accept puts the message into the log although Err is answered: an
	// acknowledgement that was lost. Err should be of class unknown.
	Accept bool
}

// Fault decides the fate of each message just before it is accepted. It may
// block until ctx ends; it must not call the broker's SetFault.
type Fault func(ctx context.Context, m postrider.Message) Outcome

// Entry is one message in the log.
type Entry struct {
	Message   postrider.Message
	Partition int
	Offset    int64 // in its partition, from 0
	// Of a message that was routed: the record's key, headers and payload.
	Key     string
	Headers []envelope.Header
	Payload []byte
	Foreign bool // its headers are not Postrider's
}

// Broker is an in-memory broker. It is safe for concurrent use.
type Broker struct {
	router     envelope.Router
	partitions int
	maxMessage int
	closed     bool // topics: only those that were named exist

	mu     sync.Mutex
	topics map[string]*topic
	groups map[string]*group
	fault  Fault
	change chan struct{} // closed and replaced when something can be received
	next   int           // partition of the next message without a key
}

type topic struct {
	name       string
	partitions [][]Entry
	log        []Entry // in the order of acceptance
}

// New returns an empty broker. opts may be nil.
func New(opts *Options) *Broker {
	if opts == nil {
		opts = &Options{}
	}
	b := &Broker{
		router: opts.Route, partitions: opts.Partitions, maxMessage: opts.MaxMessageBytes, closed: opts.Topics != nil,
		topics: make(map[string]*topic), groups: make(map[string]*group), change: make(chan struct{}),
	}
	if b.partitions <= 0 {
		b.partitions = 8
	}
	for _, name := range opts.Topics {
		b.makeTopic(name)
	}
	return b
}

// SetFault installs the hook for all later messages; nil removes it.
func (b *Broker) SetFault(f Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = f
}

// Log returns what the topic holds, in the order of acceptance. The payloads
// must not be changed.
func (b *Broker) Log(name string) []Entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[name]
	if t == nil {
		return nil
	}
	return append([]Entry(nil), t.log...)
}

// Len is the number of messages that the topic holds.
func (b *Broker) Len(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.topics[name]; t != nil {
		return len(t.log)
	}
	return 0
}

// DeleteTopic removes a topic and what it holds. Where only named topics exist,
// sending to it is an outage from then on.
func (b *Broker) DeleteTopic(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.topics, name)
	for _, g := range b.groups {
		delete(g.topics, name)
	}
}

// CreateTopic makes a topic unless it exists.
func (b *Broker) CreateTopic(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.topics[name] == nil {
		b.makeTopic(name)
	}
}

func (b *Broker) makeTopic(name string) *topic {
	t := &topic{name: name, partitions: make([][]Entry, b.partitions)}
	b.topics[name] = t
	return t
}

// Sink returns the publishing side. All sinks of a broker are equal.
func (b *Broker) Sink() broker.Sink { return &sink{b} }

type sink struct{ b *Broker }

func (s *sink) Info() broker.Info {
	return broker.Info{Name: "memory", MaxMessageBytes: s.b.maxMessage, Preview: s.preview}
}

// Deliver sends one message after the other, in the order given: the hook sees
// them in this order too.
func (s *sink) Deliver(ctx context.Context, batch broker.Batch) []error {
	msgs := batch.Messages
	var errs []error
	failed := make(map[string]bool)
	for i := range msgs {
		m := &msgs[i]
		var err error
		if m.Key != "" && failed[m.Key] {
			err = broker.Failed(broker.ErrNotTried, "", "")
		} else {
			err = s.b.publish(ctx, m)
		}
		if err == nil {
			continue
		}
		failed[m.Key] = true
		if errs == nil {
			errs = make([]error, len(msgs))
		}
		errs[i] = err
	}
	return errs
}

const codeTooLarge = "MESSAGE_TOO_LARGE"

var (
	errTooLarge = errors.New("larger than the broker's limit")
	errNoTopic  = errors.New("the topic does not exist")
)

func (b *Broker) publish(ctx context.Context, m *postrider.Message) error {
	if err := ctx.Err(); err != nil {
		return broker.Unknown(err, "", m.Topic)
	}
	if b.router != nil {
		return b.publishRouted(ctx, m)
	}
	return b.send(ctx, m, &Entry{Message: *m, Key: m.Key})
}

// frame makes w of m as its route says.
func (b *Broker) frame(w *envelope.Wire, m *postrider.Message) (envelope.Route, error) {
	r, err := b.router.Of(m)
	if err == nil {
		err = envelope.Codec{}.Encode(w, m, &r, r.Carries(m, r.Topic, true))
	}
	if err != nil {
		return r, broker.Unsendable(err, r.Topic)
	}
	return r, nil
}

// preview is [broker.Info].Preview.
func (s *sink) preview(_ string, m *postrider.Message) (broker.Preview, error) {
	var w envelope.Wire
	r, err := s.b.frame(&w, m)
	p := broker.Preview{Route: r, Destination: r.Topic, Key: r.Key, Headers: w.Headers, Payload: w.Payload, Bytes: m.Size(), Limit: s.b.maxMessage}
	if err == nil && p.Limit > 0 && p.Bytes > p.Limit {
		err = broker.Rejected(errTooLarge, codeTooLarge, r.Topic)
	}
	return p, err
}

// publishRouted sends m as its route says.
func (b *Broker) publishRouted(ctx context.Context, m *postrider.Message) error {
	var w envelope.Wire
	r, err := b.frame(&w, m)
	if err != nil {
		return err
	}
	arrives, err := envelope.Codec{}.Decode(envelope.Record{
		Topic: r.Topic, Key: r.Key, Headers: w.Headers, Payload: w.Payload, Time: m.Time, Origin: "memory:" + r.Topic + "/" + m.ID,
	})
	if err != nil {
		return broker.Rejected(err, "UNREADABLE", r.Topic)
	}
	routed := *m
	routed.Topic = r.Topic
	return b.send(ctx, &routed, &Entry{Message: arrives, Key: r.Key, Headers: w.Headers, Payload: w.Payload, Foreign: envelope.Codec{}.IsForeign(w.Headers)})
}

// send puts e into m's topic, unless the size or the hook forbids it.
func (b *Broker) send(ctx context.Context, m *postrider.Message, e *Entry) error {
	if b.maxMessage > 0 && m.Size() > b.maxMessage {
		return broker.Rejected(errTooLarge, codeTooLarge, m.Topic)
	}
	b.mu.Lock()
	fault := b.fault
	b.mu.Unlock()
	if fault == nil {
		return b.accept(m.Topic, e)
	}
	out := fault(ctx, *m)
	if out.Err != nil && !out.Accept {
		return out.Err
	}
	if err := b.accept(m.Topic, e); err != nil {
		return err
	}
	return out.Err
}

// accept puts a copy of the entry's message into the log.
func (b *Broker) accept(name string, e *Entry) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[name]
	if t == nil {
		if b.closed {
			return broker.Outage(errNoTopic, "UNKNOWN_TOPIC", name)
		}
		t = b.makeTopic(name)
	}
	p := b.partition(e.Key)
	e.Message = clone(&e.Message)
	e.Partition, e.Offset = p, int64(len(t.partitions[p]))
	e.Payload = bytes.Clone(e.Payload)
	t.log = append(t.log, *e)
	t.partitions[p] = append(t.partitions[p], *e)
	b.wake()
	return nil
}

func (b *Broker) partition(key string) int {
	if key == "" {
		b.next++
		return b.next % b.partitions
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // never fails
	return int(h.Sum32() % uint32(b.partitions))
}

// wake tells the waiting receivers to look again.
func (b *Broker) wake() {
	close(b.change)
	b.change = make(chan struct{})
}

// clone copies what the sender may change after Deliver has returned.
func clone(m *postrider.Message) postrider.Message {
	c := *m
	c.Payload = append([]byte(nil), m.Payload...)
	c.Headers = nil
	if len(m.Headers) > 0 {
		c.Headers = maps.Clone(m.Headers)
	}
	return c
}
