package natsbroker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// SinkOptions of NewSink. The zero value is what most want.
type SinkOptions struct {
	// SubjectPrefix is put before every message's subject, "events." for example.
	SubjectPrefix string
	// Route says what becomes of each message: the topic that names the subject,
	// format and more headers; NATS has no key. nil: the message's topic, plain.
	Route envelope.Router
	// NoDedup leaves out the Nats-Msg-Id header, so that the stream keeps
	// repeated messages: for demos and tests that count them.
	NoDedup bool
	// MaxPending messages are unacknowledged at once over all calls; 8192 if zero.
	MaxPending int
	// Timeout is how long an acknowledgement may take; 10 s if zero.
	Timeout time.Duration
}

// Sink publishes to JetStream. It is safe for concurrent use and does not close
// the connection.
type Sink struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	prefix  string
	router  envelope.Router
	noDedup bool
	slots   chan struct{}
	opts    []jetstream.PublishOpt
	codec   envelope.Codec
}

// NewSink returns a sink on a connection that stays the caller's. It refuses a
// connection that keeps messages while it is reconnecting, because they would be
// published after Deliver has answered. It does no I/O. opts may be nil.
func NewSink(nc *nats.Conn, opts *SinkOptions) (*Sink, error) {
	if opts == nil {
		opts = &SinkOptions{}
	}
	if nc == nil {
		return nil, errors.New("natsbroker: sink: connection is nil")
	}
	if nc.Opts.ReconnectBufSize >= 0 {
		return nil, errors.New("natsbroker: sink: the connection must have ReconnectBufSize(-1): else messages are sent after their Deliver call has ended")
	}
	pending, timeout := opts.MaxPending, opts.Timeout
	if pending <= 0 {
		pending = 8192
	}
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	// The client's own limit is never reached: messages of cancelled calls
	// count there until they time out.
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(1<<20), jetstream.WithPublishAsyncTimeout(timeout))
	if err != nil {
		return nil, fmt.Errorf("natsbroker: sink: %w", err)
	}
	return &Sink{
		nc: nc, js: js, prefix: opts.SubjectPrefix, router: opts.Route, noDedup: opts.NoDedup,
		slots: make(chan struct{}, pending), opts: []jetstream.PublishOpt{jetstream.WithRetryAttempts(0)},
		codec: wireCodec(),
	}, nil
}

// wireCodec is the header table with NATS's rules.
func wireCodec() envelope.Codec {
	return envelope.Codec{Reserved: reserved, Lines: true, Binding: envelope.BindingNATS}
}

// reserved names command the server.
func reserved(name string) bool {
	return len(name) >= 5 && strings.EqualFold(name[:5], "nats-")
}

// Info implements broker.Sink. The size limit is the server's, and 0 before the
// connection's first contact.
func (s *Sink) Info() broker.Info {
	return broker.Info{Name: "nats", MaxMessageBytes: int(s.nc.MaxPayload()), DedupWindow: s.dedup(), Codec: s.codec}
}

// dedup is the least that a stream is configured to by default.
func (s *Sink) dedup() time.Duration {
	if s.noDedup {
		return 0
	}
	return 2 * time.Minute
}

// sent is one message on the wire.
type sent struct {
	i   int
	ack jetstream.PubAckFuture
}

// lookEvery is how often a call that waits looks whether the server has said that
// it will not answer.
const lookEvery = 100 * time.Millisecond

// delivery is one Deliver call.
type delivery struct {
	before error // the connection's last error when the call began
	look   *time.Ticker
	s      *Sink
	msgs   []postrider.Message
	errs   []error
	next   []int32 // the key's following message, 0 if there is none
	ready  []int   // may be sent: everything before them in their keys is acknowledged
	wire   []sent
	out    envelope.Wire
}

// Deliver implements broker.Sink.
func (s *Sink) Deliver(ctx context.Context, msgs []postrider.Message) []error {
	d := &delivery{s: s, msgs: msgs, next: make([]int32, len(msgs)), ready: make([]int, 0, len(msgs))}
	last := make(map[string]int, len(msgs))
	for i := range msgs {
		key := msgs[i].Key
		if before, ok := last[key]; ok && key != "" {
			d.next[before] = int32(i)
		} else {
			d.ready = append(d.ready, i)
		}
		last[key] = i
	}
	d.before, d.look = s.nc.LastError(), time.NewTicker(lookEvery)
	defer d.look.Stop()
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

// publish sends what is ready, waiting for a free slot only when it has
// nothing else to wait for.
func (d *delivery) publish(ctx context.Context) {
	for len(d.ready) > 0 {
		select {
		case d.s.slots <- struct{}{}:
		default:
			if len(d.wire) > 0 {
				return
			}
			select {
			case d.s.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
		i := d.ready[0]
		d.ready = d.ready[1:]
		ack, err := d.send(&d.msgs[i])
		if err != nil {
			<-d.s.slots
			d.fail(i, err)
			continue
		}
		d.wire = append(d.wire, sent{i, ack})
	}
}

// frame makes w and the subject of a message.
func (s *Sink) frame(w *envelope.Wire, m *postrider.Message) (r envelope.Route, subject string, err error) {
	if r, err = s.router.Of(m); err != nil {
		return r, "", broker.Unsendable(err, "")
	}
	subject = Subject(s.prefix, r.Topic)
	if err = s.codec.Encode(w, m, &r, r.Carries(m, subject, false)); err != nil {
		err = broker.Unsendable(err, subject)
	}
	return r, subject, err
}

func (d *delivery) send(m *postrider.Message) (jetstream.PubAckFuture, error) {
	_, subject, err := d.s.frame(&d.out, m)
	if err != nil {
		return nil, err
	}
	header, size := d.s.header(&d.out, m)
	if err := d.s.tooLarge(size, subject); err != nil {
		return nil, err
	}
	if !d.s.nc.IsConnected() {
		return nil, broker.Outage(notConnected(d.s.nc), "", "")
	}
	ack, err := d.s.js.PublishMsgAsync(&nats.Msg{Subject: subject, Header: header, Data: payload(m, &d.out)}, d.s.opts...)
	if err != nil {
		return nil, notPublished(err, subject)
	}
	return ack, nil
}

// header is what stands before the payload, and the size of all.
func (s *Sink) header(w *envelope.Wire, m *postrider.Message) (nats.Header, int) {
	header := make(nats.Header, len(w.Headers)+1)
	size := len(w.Payload) + len("NATS/1.0\r\n\r\n")
	for _, h := range w.Headers {
		header[h.Name] = []string{string(h.Value)}
		size += len(h.Name) + len(h.Value) + 4
	}
	if !s.noDedup && m.ID != "" {
		// Ids are compared over the whole stream: under two prefixes in one
		// stream a message is two messages.
		// What a person sends again must not be taken for what was sent before.
		id := s.prefix + m.ID
		if g := m.Headers[envelope.Generation]; g != "" {
			id += "/" + g
		}
		header[jetstream.MsgIDHeader] = []string{id}
		size += len(jetstream.MsgIDHeader) + len(id) + 4
	}
	return header, size
}

// tooLarge rejects what the server said it would not take.
func (s *Sink) tooLarge(size int, subject string) error {
	if limit := s.nc.MaxPayload(); limit > 0 && int64(size) > limit {
		err := fmt.Errorf("%w: %d bytes with headers, above the server's max_payload of %d", nats.ErrMaxPayload, size, limit)
		return broker.Rejected(err, "MAX_PAYLOAD", subject)
	}
	return nil
}

// Preview implements broker.Previewer. The limit is known after the connection's
// first contact.
func (s *Sink) Preview(m *postrider.Message) (broker.Preview, error) {
	var w envelope.Wire
	r, subject, err := s.frame(&w, m)
	p := broker.Preview{Route: r, Destination: subject, Headers: w.Headers, Payload: w.Payload, Limit: int(s.nc.MaxPayload())}
	if err != nil {
		return p, err
	}
	header, size := s.header(&w, m)
	if id := header[jetstream.MsgIDHeader]; id != nil {
		p.Headers = append(p.Headers, envelope.Header{Name: jetstream.MsgIDHeader, Value: []byte(id[0])})
	}
	p.Bytes = size
	return p, s.tooLarge(size, subject)
}

// payload is what may be kept until the message is on the wire: the message's
// own, or a copy of what the next one overwrites.
func payload(m *postrider.Message, w *envelope.Wire) []byte {
	if len(w.Payload) > 0 && len(m.Payload) > 0 && &w.Payload[0] == &m.Payload[0] {
		return w.Payload
	}
	return bytes.Clone(w.Payload)
}

// await takes the answer of the message that has waited longest.
func (d *delivery) await(ctx context.Context) {
	if len(d.wire) == 0 {
		return
	}
	w := d.wire[0]
	select {
	case <-d.look.C:
		err := denied(d.s.nc, d.before, w.ack.Msg().Subject)
		if err == nil {
			return
		}
		d.fail(w.i, err)
	case <-w.ack.Ok():
		if n := d.next[w.i]; n > 0 {
			d.ready = append(d.ready, int(n))
		}
	case err := <-w.ack.Err():
		d.fail(w.i, refused(err, w.ack.Msg().Subject))
	case <-ctx.Done():
		return
	}
	d.wire = d.wire[1:]
	<-d.s.slots
}

// fail notes err for message i and bars the rest of its key.
func (d *delivery) fail(i int, err error) {
	if d.errs == nil {
		d.errs = make([]error, len(d.msgs))
	}
	d.errs[i] = err
	for n := d.next[i]; n > 0; n = d.next[n] {
		d.errs[n] = broker.NotTried(err)
	}
}

// abandon answers everything that is open: what is on the wire is unknown, the
// rest is not sent.
func (d *delivery) abandon(ctx context.Context) {
	unknown := broker.Unknown(ctx.Err(), "", "")
	for _, w := range d.wire {
		d.fail(w.i, unknown)
		<-d.s.slots
	}
	for _, i := range d.ready {
		d.fail(i, broker.NotTried(unknown))
	}
}
