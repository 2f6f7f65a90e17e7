package natsbroker

import (
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

// SinkOptions configures [Open] and [NewSink]. The zero value suits most applications.
type SinkOptions struct {
	// Prefix is put before every subject, "events." for example.
	Prefix string
	// Route sets the topic that names the subject, format and further headers of each
	// message; NATS has no key. nil: the message's topic, plain.
	Route envelope.Router
	// NoDedup omits the Nats-Msg-Id header, so that the stream keeps
	// duplicates: for demos and tests that count them.
	NoDedup bool
	// Window bounds the unacknowledged messages of all calls together; 8192 if zero.
	Window int
	// Timeout is how long an acknowledgement may take; 10 s if zero.
	Timeout time.Duration
}

// Sink publishes to JetStream. It is safe for concurrent use.
type Sink struct {
	close   func() // closes the connection that Open made; nil: the caller owns it
	nc      *nats.Conn
	js      jetstream.JetStream
	prefix  string
	router  envelope.Router
	noDedup bool
	timeout time.Duration
	acks    *acks
	codec   envelope.Codec
}

// NewSink returns a sink on a connection that the caller closes. It refuses a
// connection that buffers messages while it reconnects, because they would be
// published after Deliver has returned. It does no I/O. opts may be nil.
func NewSink(nc *nats.Conn, opts *SinkOptions) (*Sink, error) {
	if opts == nil {
		opts = &SinkOptions{}
	}
	if nc == nil {
		return nil, errors.New("natsbroker: sink: connection is nil")
	}
	if nc.Opts.ReconnectBufSize >= 0 {
		return nil, errors.New("natsbroker: sink: the connection must have ReconnectBufSize(-1): otherwise messages are sent after their Deliver call has ended")
	}
	window, timeout := opts.Window, opts.Timeout
	if window <= 0 {
		window = 8192
	}
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("natsbroker: sink: %w", err)
	}
	return &Sink{
		nc: nc, js: js, prefix: opts.Prefix, router: opts.Route, noDedup: opts.NoDedup,
		timeout: timeout, acks: newAcks(nc, window), codec: wireCodec(),
	}, nil
}

// Close closes the connection that [Open] made: calls under way fail. For a sink of
// [NewSink] it does nothing, and the connection stays open.
func (s *Sink) Close() {
	if s.close != nil {
		s.close()
	}
}

// wireCodec returns the header table for NATS.
func wireCodec() envelope.Codec {
	return envelope.Codec{Reserved: reserved, Lines: true, ASCII: true, Binding: envelope.BindingNATS}
}

// reserved reports whether the server gives a header name a meaning of its own.
func reserved(name string) bool {
	return len(name) >= 5 && strings.EqualFold(name[:5], "nats-")
}

// Info implements broker.Sink. The size limit is the server's max_payload, and 0 until
// the first connection.
func (s *Sink) Info() broker.Info {
	return broker.Info{
		Name: "nats", Takes: "stream", MaxMessageBytes: int(s.nc.MaxPayload()), DedupWindow: s.dedup(), Codec: s.codec,
		Ping: s.Ping, Probe: s.Probe, Advise: s.Advise, Keeps: s.Keeps, Preview: s.Preview,
	}
}

// dedup returns the default duplicate window of a stream, 0 with NoDedup.
func (s *Sink) dedup() time.Duration {
	if s.noDedup {
		return 0
	}
	return 2 * time.Minute
}

// frame encodes a message into w and returns its route and subject.
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

// dedupID returns the Nats-Msg-Id of a message, "" for none. A stream compares the ids of
// all its subjects, so an id names the pipe and the subject too.
func (s *Sink) dedupID(pipe, subject string, m *postrider.Message) string {
	if s.noDedup {
		return ""
	}
	return broker.DedupID(pipe, subject, m)
}

// size returns the bytes of a message that count for max_payload.
func size(w *envelope.Wire, id string) int {
	n := len(w.Payload) + len("NATS/1.0\r\n\r\n")
	for i := range w.Headers {
		n += len(w.Headers[i].Name) + len(w.Headers[i].Value) + 4
	}
	if id != "" {
		n += len(jetstream.MsgIDHeader) + len(id) + 4
	}
	return n
}

// tooLarge returns the rejection of a message above the server's max_payload.
func (s *Sink) tooLarge(size int, subject string) error {
	if limit := s.nc.MaxPayload(); limit > 0 && int64(size) > limit {
		err := fmt.Errorf("%w: %d bytes with headers, above the server's max_payload of %d", nats.ErrMaxPayload, size, limit)
		return broker.Rejected(err, codeMaxPayload, subject)
	}
	return nil
}

// Preview is [broker.Info].Preview. The limit is known after the first
// connection.
func (s *Sink) Preview(pipe string, m *postrider.Message) (broker.Preview, error) {
	var w envelope.Wire
	r, subject, err := s.frame(&w, m)
	p := broker.Preview{Route: r, Destination: subject, Headers: w.Headers, Payload: w.Payload, Limit: int(s.nc.MaxPayload())}
	if err != nil {
		return p, err
	}
	id := s.dedupID(pipe, subject, m)
	p.Bytes = size(&w, id)
	if id != "" {
		p.Headers = append(p.Headers, envelope.Header{Name: jetstream.MsgIDHeader, Value: []byte(id)})
	}
	return p, s.tooLarge(p.Bytes, subject)
}
