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

// Routing is the rule for the routing key of a message.
type Routing string

// The rules for routing keys.
const (
	RoutingByTopic Routing = "topic" // the topic; "" means the same
	RoutingByKey   Routing = "key"   // the key, or the id of a message without one
)

// SinkOptions configures [Open] and [NewSink]. The zero value suits most applications.
type SinkOptions struct {
	// Exchange receives all messages. "" is the default exchange, which routes a message to
	// the queue with the routing key as its name.
	Exchange string
	// Route sets the topic or key that becomes the routing key, format and further
	// headers of each message. nil: the message's own, plain.
	Route envelope.Router
	// RoutingKey is [RoutingByTopic] if empty.
	RoutingKey Routing
	// Window bounds the unconfirmed messages of all calls together; 0: the sink finds
	// the best number.
	Window int
	// Connections is the number of connections that share the calls; 4 if zero. RabbitMQ
	// serves a channel with one process, which slows down with the number of its
	// unconfirmed messages. An idle sink has one connection; others are opened for
	// concurrent calls.
	Connections int
	// Timeout is how long a confirm may take; 30 s if zero.
	Timeout time.Duration
	// CloudEventsPrefix is put before the attributes of CloudEvents in binary mode:
	// "cloudEvents_" (if empty), "cloudEvents:" or "ce-". Clients differ in the prefix that
	// they read; all read events in structured mode. Sources read each prefix.
	CloudEventsPrefix string
	// MaxMessageBytes is the broker's max_message_size; 16 MiB if zero, which is
	// RabbitMQ 4's default. A smaller one is learned from the broker's first refusal.
	MaxMessageBytes int
}

// Sink publishes to RabbitMQ on connections of its own. Deliver opens them when
// it needs them, and again after they have ended. It is safe for
// concurrent use.
type Sink struct {
	dialer dialer
	opts   SinkOptions
	codec  envelope.Codec
	window *window
	most   atomic.Int64 // the largest payload

	refusals refusals

	one       chan struct{} // held while opening
	lines     []line
	confirmed atomic.Int64 // when the latest confirmed message was sent, Unix ns

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
		return nil, errors.New("rabbitbroker: sink: the routing key must be topic or key")
	case o.RoutingKey == RoutingByKey && o.Exchange == "":
		return nil, errors.New("rabbitbroker: sink: the routing key can be the message's key only with an exchange: the default exchange reads it as a queue's name")
	case len(o.Exchange) > shortMost || o.Window < 0 || o.Connections < 0 || o.MaxMessageBytes < 0 || o.Timeout < 0:
		return nil, errors.New("rabbitbroker: sink: the exchange's name must have at most 255 bytes, and no option may be negative")
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

// besidePayload is the most bytes of a message besides its payload. The server limits
// payloads, broker.Info whole messages: without this allowance
// a payload at the limit with headers would be given up unsent.
const besidePayload = postrider.MaxHeaderBytes + postrider.MaxKeyLen + postrider.MaxTopicLen + postrider.MaxTypeLen +
	postrider.MaxContentTypeLen + 64 // the id

// Info implements broker.Sink.
func (s *Sink) Info() broker.Info {
	info := broker.Info{
		Name: "rabbitmq", Takes: "queue", MaxMessageBytes: s.limit() + besidePayload, MaxTopicBytes: shortMost, MaxHeaderBytes: headerRoom, Codec: s.codec,
		Ping: s.Ping, Probe: s.Probe, Advise: s.Advise, Preview: s.Preview,
	}
	if s.opts.Exchange != "" {
		info.Takes = "exchange"
	}
	if s.opts.RoutingKey == RoutingByKey { // the topic is not in a short string then
		info.MaxKeyBytes, info.MaxTopicBytes = shortMost, 0
	}
	return info
}

func (s *Sink) limit() int { return int(s.most.Load()) }

// sent is one message on the wire.
type sent struct {
	i           int
	place       place
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
	ready   []int // may be sent: all earlier messages of their keys are confirmed
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

// publish sends the ready messages. It waits for room in the window only if it has
// no confirm to wait for.
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

// look is how long a call waits for room before it checks the state of the broker
// again.
const look = time.Second

// room takes room for one message. Without room it returns false, after a wait unless
// the call has confirms to wait for.
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
	if err := d.s.settled(ctx, p.place()); err != nil {
		return err
	}
	confirm, err := session.publish(p)
	if err != nil {
		session.end(nil) // half a message may be on the wire
		return broker.Unknown(fmt.Errorf("publish: %w", err), replyCode(err), "")
	}
	d.wire = append(d.wire, sent{i, p.place(), to.destination, confirm, session, time.Now()})
	return nil
}

// fail records err for message i and bars the rest of its key.
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
