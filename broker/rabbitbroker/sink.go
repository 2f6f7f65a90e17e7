package rabbitbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/keychain"
	"github.com/postrider/postrider/envelope"
)

// Routing says what a message's routing key is.
type Routing string

// The rules for routing keys.
const (
	RoutingByTopic Routing = "topic" // the topic; what "" means too
	RoutingByKey   Routing = "key"   // the key, or the id of a message without one
)

// SinkOptions of [Open] and [NewSink]. The zero value is what most want.
type SinkOptions struct {
	// Exchange takes all messages. "" is the default exchange, where the queue
	// with the routing key as its name gets them.
	Exchange string
	// Route says what becomes of each message: the topic that is the routing key, or
	// the key that is it, format and more headers. nil: the message's own, plain.
	Route envelope.Router
	// RoutingKey is [RoutingByTopic] if empty.
	RoutingKey Routing
	// Window messages are unconfirmed at once over all calls; 0: the sink finds
	// out how many the broker needs.
	Window int
	// Connections share the calls; 4 if zero. RabbitMQ serves a channel by one process,
	// which gets slower the more of its messages are unconfirmed. An idle sink uses
	// one, and the others are opened when calls run side by side.
	Connections int
	// Timeout is how long a confirm may take; 30 s if zero.
	Timeout time.Duration
	// CloudEventsPrefix stands before the attributes of CloudEvents in binary mode:
	// "cloudEvents_" (if empty), "cloudEvents:" or "ce-". Clients differ in which
	// they know; events in structured mode suit all of them. Sources read each.
	CloudEventsPrefix string
	// MaxMessageBytes is the broker's max_message_size; 16 MiB if zero, which is
	// RabbitMQ 4's default. A smaller one is learned from the broker's first refusal.
	MaxMessageBytes int
}

// Sink publishes to RabbitMQ by connections of its own, which Deliver opens when
// it needs them and which are opened again after they have ended. It is safe for
// concurrent use.
type Sink struct {
	dialer dialer
	opts   SinkOptions
	codec  envelope.Codec
	window *window
	most   atomic.Int64 // the largest payload

	refusals refusals

	one       chan struct{} // held by the one that opens
	lines     []line
	confirmed atomic.Int64 // when the latest message that is confirmed was sent, Unix ns

	mu     sync.Mutex
	closed bool
	failed error // why the last opening failed
	tries  int   // openings that failed in a row
	again  time.Time
}

// NewSink returns a sink on connections of its own to server: see [Server] for why it
// takes no amqp.Connection. It does no I/O. opts may be nil. Close ends the connections.
func NewSink(server Server, opts *SinkOptions) (*Sink, error) {
	if opts == nil {
		opts = &SinkOptions{}
	}
	err := server.check()
	if err != nil {
		return nil, fmt.Errorf("rabbitbroker: sink: %w", err)
	}
	o := *opts
	if o.RoutingKey == "" {
		o.RoutingKey = RoutingByTopic
	}
	switch {
	case o.RoutingKey != RoutingByTopic && o.RoutingKey != RoutingByKey:
		return nil, errors.New("rabbitbroker: sink: the routing key is topic or key")
	case o.RoutingKey == RoutingByKey && o.Exchange == "":
		return nil, errors.New("rabbitbroker: sink: the routing key can be the message's key only with an exchange: the default exchange takes it for a queue's name")
	case len(o.Exchange) > shortMost || o.Window < 0 || o.Connections < 0 || o.MaxMessageBytes < 0 || o.Timeout < 0:
		return nil, errors.New("rabbitbroker: sink: an exchange's name has at most 255 bytes, and nothing is negative")
	}
	codec := wireCodec()
	if codec.Binding, err = bindingOf(o.CloudEventsPrefix); err != nil {
		return nil, fmt.Errorf("rabbitbroker: sink: %w", err)
	}
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, 16<<20)
	o.Connections = cmp.Or(o.Connections, 4)
	s := &Sink{
		dialer: dialer{server: server, name: "postrider sink"}, opts: o, codec: codec,
		window: newWindow(o.Window, time.Now), one: make(chan struct{}, 1),
		lines: make([]line, o.Connections),
	}
	s.most.Store(int64(o.MaxMessageBytes))
	return s, nil
}

// besidePayload is the most that a message has beside its payload. The server's
// limit is one of payloads, that of broker.Info one of whole messages: without
// it a payload at the limit that has headers would be given up unsent.
const besidePayload = postrider.MaxHeaderBytes + postrider.MaxKeyLen + postrider.MaxTopicLen + postrider.MaxTypeLen +
	postrider.MaxContentTypeLen + 64 // the id

// Info implements broker.Sink.
func (s *Sink) Info() broker.Info {
	info := broker.Info{
		Name: "rabbitmq", MaxMessageBytes: s.limit() + besidePayload, MaxTopicBytes: shortMost, MaxHeaderBytes: headerRoom, Codec: s.codec,
		Ping: s.Ping, Probe: s.Probe, Advise: s.Advise, Preview: s.Preview,
	}
	if s.opts.RoutingKey == RoutingByKey { // the topic is in no frame then
		info.MaxKeyBytes, info.MaxTopicBytes = shortMost, 0
	}
	return info
}

func (s *Sink) limit() int { return int(s.most.Load()) }

// sent is one message on the wire.
type sent struct {
	i           int
	id          string
	key         string // AMQP's routing key
	destination string
	confirm     *amqp.DeferredConfirmation
	session     *session
	since       time.Time
}

// delivery is one Deliver call.
type delivery struct {
	s       *Sink
	msgs    []postrider.Message
	errs    []error
	next    keychain.Chain
	ready   []int // may be sent: everything before them in their keys is confirmed
	wire    []sent
	line    *line
	encoded envelope.Wire

	slow  map[string]bool // routing keys that others need not wait for
	swept time.Time       // when all answers were taken
}

// Deliver implements broker.Sink.
func (s *Sink) Deliver(ctx context.Context, batch broker.Batch) []error {
	msgs := batch.Messages
	d := &delivery{s: s, msgs: msgs, line: s.enter()}
	defer s.leave(d.line)
	s.learnAll()
	d.next, d.ready = keychain.Of(msgs)
	for len(d.ready) > 0 || len(d.wire) > 0 {
		if ctx.Err() != nil {
			d.abandon(ctx)
			break
		}
		d.publish(ctx)
		d.await(ctx)
	}
	return d.errs
}

// publish sends what is ready, waiting for room in the window only when it has
// nothing else to wait for.
func (d *delivery) publish(ctx context.Context) {
	for len(d.ready) > 0 {
		session, err := d.s.session(ctx, d.line)
		if err != nil {
			d.failReady(err)
			return
		}
		if reason := session.reason.Load(); reason != nil {
			d.s.window.shrink()
			d.failReady(blocked(*reason))
			return
		}
		if !d.room(ctx, session) {
			if len(d.wire) > 0 || ctx.Err() != nil {
				return
			}
			continue
		}
		i := d.ready[0]
		d.ready = d.ready[1:]
		if err := d.send(ctx, session, i); err != nil {
			d.s.window.give(false)
			d.fail(i, err)
		}
	}
}

// look is how long a call waits for room before it looks whether the broker still
// is what it was.
const look = time.Second

// room takes room for one message. Without any it waits, unless there are confirms
// to wait for, and answers false.
func (d *delivery) room(ctx context.Context, session *session) bool {
	if !session.wire.roomy() {
		if len(d.wire) == 0 {
			session.wire.waitRoom(ctx, look)
		}
		return false
	}
	ok, room := d.s.window.take()
	if ok || len(d.wire) > 0 {
		return ok
	}
	select {
	case <-room:
	case <-ctx.Done():
	}
	return false
}

func (d *delivery) send(ctx context.Context, session *session, i int) error {
	m := &d.msgs[i]
	p, to, err := d.s.encode(&d.encoded, m)
	if err != nil {
		return err
	}
	if err := d.s.refusals.of(to.key, d.s.opts.Exchange, time.Now()); err != nil {
		return err
	}
	if err := d.s.settled(ctx, m.ID); err != nil {
		return err
	}
	confirm, err := session.publish(p)
	if err != nil {
		session.end(nil) // half a message may be on the wire
		return broker.Unknown(fmt.Errorf("publish: %w", err), replyCode(err), "")
	}
	d.wire = append(d.wire, sent{i, p.MessageId, to.key, to.destination, confirm, session, time.Now()})
	return nil
}

// fail notes err for message i and bars the rest of its key.
func (d *delivery) fail(i int, err error) {
	if d.errs == nil {
		d.errs = make([]error, len(d.msgs))
	}
	d.errs[i] = err
	d.next.Bar(i, d.errs, err)
}

func (d *delivery) failReady(err error) {
	for _, i := range d.ready {
		d.fail(i, err)
	}
	d.ready = d.ready[:0]
}
