package open

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"unicode/utf8"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// stdoutKind prints messages for people and pipes.
func stdoutKind() kind {
	return kind{
		schemes: []string{"stdout"}, form: "stdout:", sink: openStdout,
		params: "  stdout:                               one line of JSON per message, to try things and for pipes\n",
	}
}

func openStdout(set *Settings, rest string) (*Publisher, error) {
	if rest != "" {
		return nil, unusable(set, errors.New("stdout: has no parameters"))
	}
	router, err := set.Router()
	if err != nil {
		return nil, err
	}
	out := set.Stdout
	if out == nil {
		out = os.Stdout
	}
	return &Publisher{Sink: &printer{out: out, router: router}, Close: func() {}}, nil
}

// codeStdout is the reason of a message that standard output did not take.
const codeStdout = "STDOUT_FAILED" // standard output accepts no more: look at the program that reads it

// printer is a sink that writes one line of JSON per message. A message is acknowledged
// when the operating system has accepted its line.
type printer struct {
	router envelope.Router
	mu     sync.Mutex // lines of two calls do not mix
	out    io.Writer
	torn   bool // the last write ended within a line
}

// printed is a message as it would travel: after routes and format, with the headers of the wire.
type printed struct {
	Topic         string            `json:"topic"`
	Key           string            `json:"key,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Payload       json.RawMessage   `json:"payload,omitempty"`
	PayloadText   *string           `json:"payload_text,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"`
}

func (p *printer) Info() broker.Info {
	return broker.Info{
		Name: "stdout", Preview: p.preview,
		Ping: func(context.Context) error { return nil },
	}
}

// frame makes w of m as its route has it.
func (p *printer) frame(w *envelope.Wire, m *postrider.Message) (envelope.Route, error) {
	r, err := p.router.Of(m)
	if err == nil {
		err = envelope.Codec{}.Encode(w, m, &r, r.Carries(m, r.Topic, true))
	}
	if err != nil {
		return r, broker.Unsendable(err, r.Topic)
	}
	return r, nil
}

func (p *printer) preview(_ string, m *postrider.Message) (broker.Preview, error) {
	var w envelope.Wire
	r, err := p.frame(&w, m)
	return broker.Preview{Route: r, Destination: r.Topic, Key: r.Key, Headers: w.Headers, Payload: w.Payload, Bytes: m.Size()}, err
}

// Deliver writes the lines of a batch at once. After a failed write it is unknown which
// of them were read.
func (p *printer) Deliver(ctx context.Context, batch broker.Batch) []error {
	if err := ctx.Err(); err != nil {
		return p.all(batch, broker.Unknown(err, "", ""))
	}
	var lines bytes.Buffer
	var errs []error
	failed := make(map[string]bool)
	for i := range batch.Messages {
		m := &batch.Messages[i]
		var err error
		if m.Key != "" && failed[m.Key] {
			err = broker.Failed(broker.ErrNotTried, "", "")
		} else {
			err = p.line(&lines, m)
		}
		if err == nil {
			continue
		}
		failed[m.Key] = true
		if errs == nil {
			errs = make([]error, len(batch.Messages))
		}
		errs[i] = err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.write(lines.Bytes()); err != nil {
		unknown := p.all(batch, broker.Unknown(err, codeStdout, "stdout"))
		for i := range errs {
			if errs[i] != nil { // had no line
				unknown[i] = errs[i]
			}
		}
		return unknown
	}
	return errs
}

// write begins on a line of its own: behind half a line, which a full disk leaves, no
// reader would find the first message. The half one stays, and was not acknowledged.
func (p *printer) write(lines []byte) error {
	if p.torn && len(lines) > 0 {
		lines = append([]byte{'\n'}, lines...)
	}
	n, err := p.out.Write(lines)
	if n > 0 {
		p.torn = lines[n-1] != '\n'
	}
	return err
}

// all answers every message of a batch with err.
func (p *printer) all(batch broker.Batch, err error) []error {
	errs := make([]error, len(batch.Messages))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// line appends m to lines.
func (p *printer) line(lines *bytes.Buffer, m *postrider.Message) error {
	var w envelope.Wire
	r, err := p.frame(&w, m)
	if err != nil {
		return err
	}
	one := printed{Topic: r.Topic, Key: r.Key, Headers: make(map[string]string, len(w.Headers))}
	for _, h := range w.Headers {
		one.Headers[h.Name] = string(h.Value)
	}
	switch {
	case len(w.Payload) == 0:
	case json.Valid(w.Payload):
		one.Payload = w.Payload // the encoder removes line breaks
	case utf8.Valid(w.Payload):
		text := string(w.Payload)
		one.PayloadText = &text
	default:
		one.PayloadBase64 = w.Payload
	}
	enc := json.NewEncoder(lines)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(one); err != nil {
		return broker.Rejected(err, codeStdout, r.Topic)
	}
	return nil
}
