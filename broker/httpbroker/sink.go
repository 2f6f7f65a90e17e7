package httpbroker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// SinkOptions configures [Open] and [NewSink]. The zero value suits most applications.
type SinkOptions struct {
	// Route sets the topic, which selects the endpoint, and the format of each message.
	// nil: the message's own topic, in the format plain.
	Route envelope.Router
	// Patience is how long a call waits for a slow endpoint if
	// there are others. After it the messages are an outage of that endpoint,
	// and their requests continue: when a message is sent again, it takes
	// over the answer. 0: 1 s, or 4 times the endpoint's usual time, at least
	// 300 ms, if it has not answered since while another endpoint answered a later request.
	// Messages that wait for the sink's own limit, or for the only endpoint, get 5 s or
	// Patience, whichever is longer; always less than the rest of the call.
	Patience time.Duration
	// Window bounds the requests under way of all calls together; 0: 1024.
	Window int
	// MaxLateBytes is the most payload bytes of requests in flight whose calls have ended. A
	// request above it is aborted. 0: 64 MiB.
	MaxLateBytes int
}

// Sink posts messages to endpoints. It is safe for concurrent use. Close aborts requests
// in flight.
type Sink struct {
	opts     SinkOptions
	codec    envelope.Codec
	life     context.Context
	end      context.CancelFunc
	slots    chan struct{}
	late     atomic.Int64 // payload bytes of requests in flight whose calls have ended
	youngest atomic.Int64 // when the youngest accepted request began, in Unix nanoseconds
	table    atomic.Pointer[table]
	swap     sync.Mutex // held while the table or stopped changes

	stopped map[string]bool // names of the endpoints that Stop has stopped
}

// table has the present endpoints, in the order in which a topic is looked up.
type table struct{ targets []*target }

// NewSink returns a sink for endpoints. It takes no http.Client: the sink checks
// the addresses that it connects to, which a foreign client would not do. It does
// no I/O except reading credentials. opts may be nil. Close ends the connections.
func NewSink(endpoints []Endpoint, opts *SinkOptions) (*Sink, error) {
	if opts == nil {
		opts = &SinkOptions{}
	}
	s := &Sink{opts: *opts, codec: codec()}
	if s.opts.Window <= 0 {
		s.opts.Window = 1024
	}
	if s.opts.MaxLateBytes <= 0 {
		s.opts.MaxLateBytes = 64 << 20
	}
	s.slots = make(chan struct{}, s.opts.Window)
	s.life, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	if err := s.SetEndpoints(endpoints); err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// SetEndpoints replaces all endpoints from the next message on. Each begins
// with a closed breaker, except those that Stop has named: an endpoint that was stopped by
// 410 Gone is tried again unless a store has recorded the stop.
func (s *Sink) SetEndpoints(endpoints []Endpoint) error {
	if len(endpoints) == 0 {
		return fmt.Errorf("%w: no endpoint given", ErrEndpoint)
	}
	next := &table{}
	names := make(map[string]bool)
	for _, e := range endpoints {
		p, err := prepare(e)
		if err != nil {
			return err
		}
		if names[p.Name] {
			return p.wrong("duplicate name: give each endpoint a name of its own")
		}
		names[p.Name] = true
		t := newTarget(s, p)
		if len(endpoints) > 1 {
			t.dest = p.Name
		}
		next.targets = append(next.targets, t)
	}
	s.swap.Lock()
	defer s.swap.Unlock()
	for _, t := range next.targets {
		t.held = s.stopped[t.p.Name]
	}
	if old := s.table.Swap(next); old != nil {
		for _, t := range old.targets {
			t.close()
		}
	}
	return nil
}

// Close aborts all requests. Calls that wait for them return.
func (s *Sink) Close() {
	s.end()
	s.swap.Lock()
	defer s.swap.Unlock()
	for _, t := range s.table.Load().targets {
		t.close()
	}
}

// maxBatch keeps calls short: a lane sends nothing else while it waits for one.
const maxBatch = 256

// Info implements broker.Sink.
func (s *Sink) Info() broker.Info {
	return broker.Info{
		Name: "http", MaxBatch: maxBatch, Codec: s.codec,
		Ping: s.Ping, Preview: s.Preview, Stops: &broker.Stops{Set: s.Stop, Gone: s.Gone},
	}
}

// framed is an encoded message and its endpoint.
type framed struct {
	t      *target
	route  envelope.Route
	header http.Header
	body   []byte
}

// frame encodes a message and finds its endpoint. An error is the message's answer.
func (s *Sink) frame(tb *table, m *postrider.Message) (f framed, err error) {
	if f.route, err = s.opts.Route.Of(m); err != nil {
		return f, broker.Unsendable(err, "")
	}
	if f.t = tb.target(f.route.Topic); f.t == nil {
		return f, errNoEndpoint(f.route.Topic)
	}
	if f.header, f.body, err = frame(s.codec, m, &f.route); err != nil {
		return f, broker.Unsendable(err, f.t.dest)
	}
	f.header[headerID] = []string{m.ID}
	f.header[headerAgent] = []string{agent}
	if limit := f.t.p.MaxMessageBytes; limit > 0 && len(f.body) > limit {
		return f, tooLarge(f.t, len(f.body), limit)
	}
	return f, nil
}

// Preview is [broker.Info].Preview. It has no timestamp, signature and authorization,
// which are made when a request is sent.
func (s *Sink) Preview(_ string, m *postrider.Message) (broker.Preview, error) {
	f, err := s.frame(s.table.Load(), m)
	p := broker.Preview{Route: f.route, Payload: f.body, Bytes: len(f.body)}
	if f.t != nil {
		p.Destination, p.Limit = f.t.p.Name, f.t.p.MaxMessageBytes
	}
	for _, name := range slices.Sorted(maps.Keys(f.header)) {
		p.Headers = append(p.Headers, envelope.Header{Name: name, Value: []byte(f.header[name][0])})
	}
	return p, err
}

var errClosed = errors.New("the sink is closed")

// Deliver implements broker.Sink.
func (s *Sink) Deliver(ctx context.Context, batch broker.Batch) []error {
	c := newCall(ctx, s, batch.Messages)
	c.start()
	c.wait()
	return c.finish()
}

// target returns the endpoint of a topic, or nil.
func (tb *table) target(topic string) *target {
	for _, t := range tb.targets {
		if t.p.takes(topic) {
			return t
		}
	}
	return nil
}

// Default and limits of a call's patience.
const (
	defaultPatience = time.Second
	leastPatience   = 300 * time.Millisecond // with an endpoint that is silent
	maxPatience     = 5 * time.Second
)

// accepted records that some endpoint has accepted a request that began at began.
func (s *Sink) accepted(began time.Time) {
	for at := began.UnixNano(); ; {
		young := s.youngest.Load()
		if young >= at || s.youngest.CompareAndSwap(young, at) {
			return
		}
	}
}

// outran reports whether a request that began clearly later was accepted: then a request
// that still waits does not wait because of this machine.
func (s *Sink) outran(began time.Time) bool {
	return s.youngest.Load() >= began.Add(hungPatience).UnixNano()
}

// patience returns how long a call may wait for an endpoint that is slow itself.
func (s *Sink) patience(ctx context.Context) time.Duration {
	d := s.opts.Patience
	if d <= 0 {
		d = defaultPatience
	}
	if end, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(end)*3/4)
	}
	return d
}
