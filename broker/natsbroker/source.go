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

// SourceOptions of NewSource.
type SourceOptions struct {
	Stream  string // required; it must exist
	Durable string // the consumer's name; required; made or updated by the first Receive
	// Subjects filter the stream; nil: all of it.
	Subjects []string
	// Foreign says what records look like that others wrote.
	Foreign envelope.Foreign
	// SubjectPrefix is taken off the subject of records that do not name their topic.
	SubjectPrefix string
	// AckWait is how long the server waits before it delivers again; 30 s if zero.
	AckWait time.Duration
	// MaxHeld bounds the unsettled messages; 1024 if zero.
	MaxHeld int
	// MaxHeldBytes bounds the unsettled messages, but for the last of them; 64 MiB
	// if zero.
	MaxHeldBytes int
}

// group is the consumer's one priority group: the server pins it to the source
// that pulls, and the others stand by.
const group = "postrider"

// Source receives for one durable consumer of a stream. Messages given back are
// kept here until they are due, in front of their keys' later ones. Of several
// sources of one durable the server feeds one; another one takes over when it
// is closed or has not pulled for half of AckWait, and passes on what is newer
// only when the earlier one's messages are settled or have come again. It is
// safe for concurrent use.
type Source struct {
	js    jetstream.JetStream
	opts  SourceOptions
	codec envelope.Codec
	one   chan struct{} // held by the one that fetches

	life context.Context // ends with Close, and every pull with it
	end  context.CancelFunc

	consumer jetstream.Consumer // guarded by one, as batch and undrain
	batch    jetstream.MessageBatch
	undrain  context.CancelFunc // ends batch
	got      int                // messages of batch
	single   bool               // the next batch is one message
	pin      string             // guarded by one: what the server calls us while it feeds us

	mu     sync.Mutex
	resume resume
	log    inhand.Log
	inHand map[uint64]bool // stream sequences in log
	acks   map[uint64]ack  // not confirmed, by stream sequence
	change chan struct{}
	closed bool
}

// NewSource returns a source on a connection that stays the caller's. It does
// no I/O.
func NewSource(nc *nats.Conn, opts SourceOptions) (*Source, error) {
	if nc == nil || opts.Stream == "" || opts.Durable == "" {
		return nil, errors.New("natsbroker: source: a connection, a stream and a durable name are required")
	}
	if opts.AckWait <= 0 {
		opts.AckWait = 30 * time.Second
	}
	if opts.MaxHeld <= 0 {
		opts.MaxHeld = 1024
	}
	if opts.MaxHeldBytes <= 0 {
		opts.MaxHeldBytes = 64 << 20
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("natsbroker: source: %w", err)
	}
	life, end := context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	codec := wireCodec()
	codec.Foreign = opts.Foreign
	return &Source{
		js: js, opts: opts, codec: codec, one: make(chan struct{}, 1), life: life, end: end,
		inHand: make(map[uint64]bool), acks: make(map[uint64]ack), change: make(chan struct{}),
	}, nil
}

// Info implements broker.Source.
func (s *Source) Info() broker.SourceInfo {
	return broker.SourceInfo{Name: "nats", AckWait: s.opts.AckWait}
}

// errNoPin: with an older server a second source would take every other message.
var errNoPin = errors.New("the server does not pin consumers; nats-server 2.11 or newer is needed")

var errClosed = errors.New("natsbroker: source is closed")

// Close gives back to the server everything that is not with a receiver, and
// ends Receive. What receivers hold comes again after AckWait.
func (s *Source) Close() {
	s.mu.Lock()
	s.closed = true
	s.wake()
	s.mu.Unlock()
	s.end()
	s.one <- struct{}{} // fetches see that it is closed and end
	defer func() { <-s.one }()
	var arrived []jetstream.Msg
	if s.batch != nil {
		for msg := range s.batch.Messages() { // closed, now that its context has ended
			arrived = append(arrived, msg)
		}
		s.batch = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting(func(msg jetstream.Msg) { arrived = append(arrived, msg) })
	for _, msg := range arrived {
		_ = msg.Nak() // if it is lost, AckWait does the same later
	}
	s.unpin()
}

// waiting calls fn for every message that is not with a receiver. The caller
// holds mu.
func (s *Source) waiting(fn func(jetstream.Msg)) {
	s.log.Each(func(d broker.Delivery) {
		if msg, ok := d.Token.(jetstream.Msg); ok {
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

// wait fetches, or lets another call do it, until there may be something to
// return. It never waits so long that a message kept here would be delivered
// again by the server.
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
	limit = later(limit, time.Now().Add(leastWait))
	ctx, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	defer s.keep()
	select {
	case s.one <- struct{}{}:
		defer func() { <-s.one }()
		return s.fetch(ctx, change)
	case <-change:
	case <-ctx.Done():
	}
	return nil // Receive looks at the caller's context itself
}

// leastWait bounds how often a source that holds messages back looks again.
const leastWait = 20 * time.Millisecond

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// keep tells the server that what waits here is being worked on.
func (s *Source) keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting(func(msg jetstream.Msg) {
		_ = msg.InProgress() // if it is lost, the message comes again
	})
}

// fetch takes what has arrived into the log; the caller holds one.
func (s *Source) fetch(ctx context.Context, change <-chan struct{}) error {
	if err := s.ask(ctx); err != nil {
		return err
	}
	if s.batch == nil {
		room := s.room()
		if room <= 0 { // until something is settled
			select {
			case <-change:
			case <-ctx.Done():
			}
			return nil
		}
		if err := s.pull(ctx, room); err != nil && ctx.Err() == nil {
			return err
		}
		if s.batch == nil {
			return nil // Receive looks at the caller's context itself
		}
	}
	select {
	case msg, ok := <-s.batch.Messages():
		s.add(msg, ok)
	case <-change:
		return nil
	case <-ctx.Done():
		return nil
	}
	for s.batch != nil {
		select {
		case msg, ok := <-s.batch.Messages():
			s.add(msg, ok)
		default:
			return nil
		}
	}
	return nil
}

// room is how many bytes may be asked for. What waits for earlier messages is not
// counted, and there is no bound while those are missing: they must come. The
// caller holds one.
func (s *Source) room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resume.missing > 0 {
		return math.MaxInt32
	}
	return s.opts.MaxHeldBytes - s.log.Bytes()
}

// pull asks the server for the next batch, of at most room bytes.
func (s *Source) pull(ctx context.Context, room int) error {
	if s.consumer == nil {
		c, err := s.js.CreateOrUpdateConsumer(ctx, s.opts.Stream, jetstream.ConsumerConfig{
			Durable: s.opts.Durable, FilterSubjects: s.opts.Subjects,
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.opts.AckWait,
			MaxAckPending: s.opts.MaxHeld, DeliverPolicy: jetstream.DeliverAllPolicy,
			MaxDeliver:     -1, // behind a limit the server would never deliver a message again
			PriorityPolicy: jetstream.PriorityPolicyPinned, PriorityGroups: []string{group}, PinnedTTL: s.opts.AckWait / 2,
		})
		if err != nil {
			return fmt.Errorf("natsbroker: consumer %s of stream %s: %w", s.opts.Durable, s.opts.Stream, err)
		}
		if c.CachedInfo().Config.PriorityPolicy != jetstream.PriorityPolicyPinned {
			return fmt.Errorf("natsbroker: consumer %s of stream %s: %w", s.opts.Durable, s.opts.Stream, errNoPin)
		}
		s.consumer = c
		s.begin(c.CachedInfo())
	}
	life, cancel := context.WithTimeout(s.life, s.opts.AckWait/6)
	limit, opts := s.opts.MaxHeld, []jetstream.FetchOpt{jetstream.FetchContext(life), jetstream.FetchPriorityGroup(group)}
	if s.single { // of any size
		limit = 1
	} else {
		opts = append(opts, jetstream.FetchMaxBytes(room))
	}
	b, err := s.consumer.Fetch(limit, opts...)
	if err != nil {
		cancel()
		return fmt.Errorf("natsbroker: receive from stream %s: %w", s.opts.Stream, err)
	}
	s.batch, s.undrain, s.got = b, cancel, 0
	return nil
}

func (s *Source) add(msg jetstream.Msg, ok bool) {
	if !ok {
		switch err := s.batch.Error(); {
		case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrConsumerDeleted):
			s.consumer = nil
		case errors.Is(err, jetstream.ErrPinIDMismatch):
			s.pin = ""
		}
		s.undrain()
		s.batch = nil
		// A batch that brings nothing may have ended since the next message is
		// above its bound: then it comes by itself.
		s.single = s.got == 0 && !s.single
		return
	}
	s.got++
	meta, err := msg.Metadata()
	if err != nil { // not a message of a consumer: there is nothing to settle
		return
	}
	if pin := msg.Headers().Get("Nats-Pin-Id"); pin != "" {
		s.pin = pin
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived(msg, meta)
}

func (s *Source) decode(msg jetstream.Msg, meta *jetstream.MsgMetadata) broker.Delivery {
	var hs []envelope.Header
	for name, values := range msg.Headers() {
		if reserved(name) {
			continue
		}
		for _, v := range values {
			hs = append(hs, envelope.Header{Name: name, Value: []byte(v)})
		}
	}
	topic := msg.Subject()
	if p := s.opts.SubjectPrefix; len(topic) > len(p) && topic[:len(p)] == p {
		topic = topic[len(p):]
	}
	origin := meta.Stream + "@" + strconv.FormatUint(meta.Sequence.Stream, 10)
	m, err := s.codec.Decode(envelope.Record{
		Topic: topic, Headers: hs, Payload: msg.Data(), Time: meta.Timestamp.UTC(), Origin: "nats:" + origin,
	})
	return broker.Delivery{Message: m, Attempt: int(meta.NumDelivered), Origin: origin, Token: msg, Err: err}
}
