package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
	"github.com/postrider/postrider/envelope"
)

// SourceOptions configures [OpenSource] and [NewSource].
type SourceOptions struct {
	Stream string // required; it must exist
	// Group is the name of the durable consumer; required. The first Receive creates or
	// updates it.
	Group string
	// Subjects filter the stream, NATS's wildcards included; nil: all of it.
	Subjects []string
	// Foreign describes messages of other writers.
	Foreign envelope.Foreign
	// Prefix is removed from the subject of messages that do not name their topic.
	Prefix string
	// AckWait is how long the server waits before it delivers again; 30 s if zero.
	AckWait time.Duration
	// MaxHeld bounds the unsettled messages; 1024 if zero.
	MaxHeld int
	// MaxHeldBytes bounds the size of unsettled messages; the last one may pass it. 64 MiB
	// if zero.
	MaxHeldBytes int
}

// group is the consumer's only priority group: the server pins it to the source
// that pulls, and other sources wait.
const group = "postrider"

// pullsPerWait is the least number of pulls in AckWait; each renews the pin. The pin
// lasts for AckWait, because no other source gets messages that are unsettled here before
// that has passed.
const pullsPerWait = 6

// Source receives for one durable consumer of a stream. Messages given back are
// kept here until they are due, in front of their keys' later ones. The server delivers
// to one source of a durable. Another source takes over when this one
// is closed or has been silent for AckWait, and passes newer messages on
// only when the earlier source's messages are settled or have been delivered again. It is
// safe for concurrent use.
type Source struct {
	close func() // closes the connection that OpenSource made; nil: the caller owns it
	js    jetstream.JetStream
	opts  SourceOptions
	codec envelope.Codec
	one   chan struct{} // held while fetching

	consumer jetstream.Consumer // guarded by one; nil: to be looked up again
	created  time.Time          // creation time of the consumer of all messages in hand; guarded by one
	puller   puller             // guarded by one

	mu     sync.Mutex
	resume resume
	log    *inhand.Log
	inHand map[uint64]bool // stream sequences in log and early; true: delivered more than once
	acks   map[uint64]ack  // unconfirmed acknowledgements, by stream sequence
	kept   time.Time       // when the waiting messages were extended last
	change chan struct{}
	closed bool
}

// NewSource returns a source on a connection that the caller closes. It does
// no I/O. opts must name a stream and a group.
func NewSource(nc *nats.Conn, opts *SourceOptions) (*Source, error) {
	if nc == nil || opts == nil || opts.Stream == "" || opts.Group == "" {
		return nil, errors.New("natsbroker: source: a connection, a stream and a group are required")
	}
	o := *opts
	if o.AckWait <= 0 {
		o.AckWait = 30 * time.Second
	}
	if o.MaxHeld <= 0 {
		o.MaxHeld = 1024
	}
	if o.MaxHeldBytes <= 0 {
		o.MaxHeldBytes = 64 << 20
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("natsbroker: source: %w", err)
	}
	codec := wireCodec()
	codec.Foreign = o.Foreign
	return &Source{
		js: js, puller: newPuller(nc, &o), opts: o, codec: codec, one: make(chan struct{}, 1), log: new(inhand.Log),
		inHand: make(map[uint64]bool), acks: make(map[uint64]ack), change: make(chan struct{}),
	}, nil
}

// Info implements broker.Source.
func (s *Source) Info() broker.SourceInfo {
	return broker.SourceInfo{Name: "nats", AckWait: s.opts.AckWait}
}

// errNoPin refuses older servers, where a second source would take every other message.
var errNoPin = errors.New("the server does not pin consumers; nats-server 2.11 or newer is needed")

var errClosed = errors.New("natsbroker: source is closed")

// Close gives the messages that no receiver holds back to the server, and
// ends Receive. The server delivers the receivers' messages again after AckWait. Close
// closes the connection that [OpenSource] made; one given to [NewSource] stays open.
func (s *Source) Close() {
	if s.close != nil {
		defer s.close()
	}
	s.mu.Lock()
	s.closed = true
	s.wake()
	s.mu.Unlock()
	s.one <- struct{}{} // a fetch under way notices and ends
	defer func() { <-s.one }()
	arrived := s.puller.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting(func(msg *nats.Msg) { arrived = append(arrived, msg) })
	for _, msg := range arrived {
		_ = msg.Nak() // if lost, AckWait has the same effect later
	}
	s.unpin()
}

// over reports whether Close was called.
func (s *Source) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// waiting calls fn for every message that no receiver holds. The caller
// holds mu.
func (s *Source) waiting(fn func(*nats.Msg)) {
	s.log.Each(func(d broker.Delivery) {
		if msg, ok := d.Token.(*nats.Msg); ok {
			fn(msg)
		}
	})
	for _, e := range s.resume.early {
		fn(e.msg)
	}
}

// wake makes receivers look again. The caller holds mu.
func (s *Source) wake() {
	close(s.change)
	s.change = make(chan struct{})
}

// Receive implements broker.Source.
func (s *Source) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.mu.Lock()
		ds, due := s.log.Take(nil, max(limit, 1), time.Now())
		change, closed := s.change, s.closed
		s.mu.Unlock()
		switch {
		case closed:
			return nil, errClosed
		case len(ds) > 0:
			return ds, nil
		}
		if err := s.wait(ctx, due, change); err != nil {
			return nil, err
		}
	}
}

// wait fetches, or waits for another call that does, until Receive may have messages to
// return. It ends early enough to extend the messages kept here before the server
// delivers them again.
func (s *Source) wait(ctx context.Context, due time.Time, change <-chan struct{}) error {
	limit := time.Now().Add(s.opts.AckWait / 3)
	if !due.IsZero() && due.Before(limit) {
		limit = due
	}
	s.mu.Lock()
	if s.resume.missing > 0 && s.resume.next.Before(limit) {
		limit = s.resume.next
	}
	s.mu.Unlock()
	limited, cancel := context.WithDeadline(ctx, later(limit, time.Now().Add(leastWait)))
	defer cancel()
	defer s.keep()
	select {
	case s.one <- struct{}{}:
		defer func() { <-s.one }()
		if s.over() {
			return nil
		}
		if some, err := s.drain(); some || err != nil {
			return err
		}
		if err := s.ready(ctx); err != nil {
			if ctx.Err() != nil {
				return nil // Receive looks at the caller's context itself
			}
			return may(s.js.Conn(), err, sourceRights)
		}
		return s.fetch(limited, change)
	case <-change:
	case <-limited.Done():
	}
	return nil // Receive looks at the caller's context itself
}

const sourceRights = "allow this user to publish to $JS.API.CONSUMER.> and $JS.ACK.>, and to subscribe to _INBOX.> (which counts from the next connection on)"

// apiWait bounds a request to the server, which never answers one that this user may
// not make.
const apiWait = 5 * time.Second

// ready ensures that the consumer exists and that the number of missing messages is known.
// The caller holds one.
func (s *Source) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apiWait)
	defer cancel()
	if s.consumer == nil {
		if err := s.durable(ctx); err != nil {
			return fmt.Errorf("natsbroker: consumer %s of stream %s: %w", s.opts.Group, s.opts.Stream, err)
		}
	}
	return s.ask(ctx)
}

// leastWait is the shortest pause between two looks while messages are held back.
const leastWait = 20 * time.Millisecond

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// keep extends the messages that wait here, when it is time.
func (s *Source) keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.kept) < s.opts.AckWait/pullsPerWait {
		return
	}
	s.kept = time.Now()
	s.waiting(func(msg *nats.Msg) {
		_ = msg.InProgress() // if lost, the server delivers the message again
	})
}

// fetch requests messages, waits, and takes those that arrive into the log. The caller
// holds one.
func (s *Source) fetch(ctx context.Context, change <-chan struct{}) error {
	room := s.room()
	if err := s.pull(room); err != nil {
		return err
	}
	again := time.NewTimer(time.Until(s.puller.due()))
	defer again.Stop()
	ring := again.C
	if room <= 0 { // until something is settled
		ring = nil
	}
	select {
	case msg := <-s.puller.msgs:
		_, err := s.take(msg)
		if _, also := s.drain(); err == nil {
			err = also
		}
		return err
	case <-ring:
	case <-change:
	case <-ctx.Done():
	}
	return nil
}

// drain takes the messages that have arrived, without waiting. The caller holds one.
func (s *Source) drain() (some bool, err error) {
	for err == nil {
		select {
		case msg := <-s.puller.msgs:
			var one bool
			one, err = s.take(msg)
			some = some || one
		default:
			return some, nil
		}
	}
	return some, err
}

// room returns how many bytes may be requested. Messages held back for earlier ones do
// not count, and there is no bound while those are missing, because they must arrive. The
// caller holds one.
func (s *Source) room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resume.missing > 0 {
		return math.MaxInt32
	}
	return s.opts.MaxHeldBytes - s.log.Bytes()
}

// pull requests the next messages, of at most room bytes, unless a request is
// open. Without room it only keeps the pin.
func (s *Source) pull(room int) error {
	err := s.puller.stay()
	if room > 0 {
		err = s.puller.pull(room)
	}
	if err != nil {
		return fmt.Errorf("natsbroker: receive from stream %s: %w", s.opts.Stream, err)
	}
	return nil
}

// durable creates or updates the consumer.
func (s *Source) durable(ctx context.Context) error {
	if err := s.lookUp(ctx); err != nil {
		return err
	}
	c, err := s.js.CreateOrUpdateConsumer(ctx, s.opts.Stream, jetstream.ConsumerConfig{
		Durable: s.opts.Group, FilterSubjects: s.opts.Subjects,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.opts.AckWait,
		MaxAckPending: s.opts.MaxHeld, DeliverPolicy: jetstream.DeliverAllPolicy,
		MaxDeliver:     -1, // beyond a limit the server would never deliver a message again
		PriorityPolicy: jetstream.PriorityPolicyPinned, PriorityGroups: []string{group}, PinnedTTL: s.opts.AckWait,
	})
	if err != nil {
		return err
	}
	if c.CachedInfo().Config.PriorityPolicy != jetstream.PriorityPolicyPinned {
		return errNoPin
	}
	info := c.CachedInfo()
	if !info.Created.Equal(s.created) { // another process created it just now
		s.forget()
	}
	s.consumer, s.created = c, info.Created
	s.begin(info)
	return nil
}

// lookUp drops the messages in hand if their consumer is gone, before a new
// one takes their acknowledgements for its own messages.
func (s *Source) lookUp(ctx context.Context) error {
	if s.created.IsZero() {
		return nil
	}
	c, err := s.js.Consumer(ctx, s.opts.Stream, s.opts.Group)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
	case err != nil:
		return err
	case c.CachedInfo().Created.Equal(s.created):
		return nil
	}
	s.forget()
	return nil
}

// forget drops all messages in hand: their consumer is gone, and perhaps their stream.
// An acknowledgement names a message by its number only, and a new stream of the
// same name counts from 1 again. Messages that still exist are delivered again.
func (s *Source) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.Drop()
	s.log, s.resume, s.created = new(inhand.Log), resume{}, time.Time{}
	clear(s.inHand)
	clear(s.acks)
	s.wake()
}

// take puts a message of the server into the log, or handles its status, and reports
// whether it was a message. A message is known by its subject for acknowledgements: its
// headers are its writer's, and may look like those of a status. The caller holds one.
func (s *Source) take(msg *nats.Msg) (bool, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return false, s.ended(msg)
	}
	s.puller.got(msg)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived(msg, meta)
	return true, nil
}

// ended handles an answer that is no message of a consumer: the status of a request.
func (s *Source) ended(msg *nats.Msg) error {
	status := msg.Header.Get("Status")
	if status == "" {
		return nil
	}
	state, err := s.puller.status(msg, status)
	switch state {
	case consumerDeleted:
		s.consumer = nil
		s.forget()
	case consumerUnsure:
		s.consumer = nil
	case consumerThere:
	}
	if err != nil {
		return fmt.Errorf("natsbroker: receive from stream %s: %w", s.opts.Stream, err)
	}
	return nil
}

func (s *Source) decode(msg *nats.Msg, meta *nats.MsgMetadata) broker.Delivery {
	var hs []envelope.Header
	for name, values := range msg.Header {
		if reserved(name) {
			continue
		}
		for _, v := range values {
			hs = append(hs, envelope.Header{Name: name, Value: []byte(v)})
		}
	}
	topic := msg.Subject
	if p := s.opts.Prefix; len(topic) > len(p) && topic[:len(p)] == p {
		topic = topic[len(p):]
	}
	origin := meta.Stream + "@" + strconv.FormatUint(meta.Sequence.Stream, 10)
	m, err := s.codec.Decode(envelope.Record{
		Topic: topic, Headers: hs, Payload: msg.Data, Time: meta.Timestamp.UTC(), Origin: "nats:" + origin,
	})
	return broker.Delivery{Message: m, Attempt: int(meta.NumDelivered), Origin: origin, Token: msg, Err: err, Foreign: s.codec.IsForeign(hs)}
}
