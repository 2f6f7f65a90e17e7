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

// SinkOptions of [Open] and [NewSink]. The zero value is what most want.
type SinkOptions struct {
	// Prefix is put before every subject, "events." for example.
	Prefix string
	// Route says what becomes of each message: the topic that names the subject,
	// format and more headers; NATS has no key. nil: the message's topic, plain.
	Route envelope.Router
	// NoDedup leaves out the Nats-Msg-Id header, so that the stream keeps
	// repeated messages: for demos and tests that count them.
	NoDedup bool
	// Window is how many messages are unacknowledged at once over all calls; 8192 if zero.
	Window int
	// Timeout is how long an acknowledgement may take; 10 s if zero.
	Timeout time.Duration
}

// Sink publishes to JetStream. It is safe for concurrent use.
type Sink struct {
	close   func() // of the connection that Open made; nil: it is the caller's
	nc      *nats.Conn
	js      jetstream.JetStream
	prefix  string
	router  envelope.Router
	noDedup bool
	timeout time.Duration
	acks    *acks
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

// Close ends the connection that [Open] made: calls under way fail. A sink of
// [NewSink] has nothing to end, and leaves its connection open.
func (s *Sink) Close() {
	if s.close != nil {
		s.close()
	}
}

// wireCodec is the header table with NATS's rules.
func wireCodec() envelope.Codec {
	return envelope.Codec{Reserved: reserved, Lines: true, ASCII: true, Binding: envelope.BindingNATS}
}

// reserved names command the server.
func reserved(name string) bool {
	return len(name) >= 5 && strings.EqualFold(name[:5], "nats-")
}

// Info implements broker.Sink. The size limit is the server's, and 0 before the
// connection's first contact.
func (s *Sink) Info() broker.Info {
	return broker.Info{
		Name: "nats", MaxMessageBytes: int(s.nc.MaxPayload()), DedupWindow: s.dedup(), Codec: s.codec,
		Ping: s.Ping, Probe: s.Probe, Advise: s.Advise, Keeps: s.Keeps, Preview: s.Preview,
	}
}

// dedup is the least that a stream is configured to by default.
func (s *Sink) dedup() time.Duration {
	if s.noDedup {
		return 0
	}
	return 2 * time.Minute
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

// dedupID is the Nats-Msg-Id of a message, "" for none. A stream compares the ids of
// all its subjects, so an id names the pipe and the subject too.
func (s *Sink) dedupID(pipe, subject string, m *postrider.Message) string {
	if s.noDedup {
		return ""
	}
	return broker.DedupID(pipe, subject, m)
}

// size is what the server counts of a message.
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

// tooLarge rejects what the server said it would not take.
func (s *Sink) tooLarge(size int, subject string) error {
	if limit := s.nc.MaxPayload(); limit > 0 && int64(size) > limit {
		err := fmt.Errorf("%w: %d bytes with headers, above the server's max_payload of %d", nats.ErrMaxPayload, size, limit)
		return broker.Rejected(err, codeMaxPayload, subject)
	}
	return nil
}

// Preview is [broker.Info].Preview. The limit is known after the connection's
// first contact.
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
