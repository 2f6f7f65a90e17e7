package httpbroker_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/broker/httpbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/faultproxy"
)

const topic = "orders"

// recorder is the receiver of the tests: a plain HTTP server that records the requests
// it accepts and shares no code with the adapter.
type recorder struct {
	mu     sync.Mutex
	status map[string]int // what a topic's messages are answered; 0: they are taken
	limit  map[string]int // of a topic's payloads; 0: largest
	log    []postrider.Message
	raw    []request
}

// request is an accepted request.
type request struct {
	header  http.Header
	payload []byte
}

func (r *recorder) requests() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.raw[:len(r.raw):len(r.raw)]
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	payload, err := io.ReadAll(req.Body)
	if err != nil {
		return // aborted: not accepted
	}
	m, err := read(req.Header, payload)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := largest
	if l := r.limit[m.Topic]; l > 0 {
		limit = l
	}
	if status := r.status[m.Topic]; status != 0 {
		w.WriteHeader(status)
		return
	}
	if len(payload) > limit {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	r.log, r.raw = append(r.log, m), append(r.raw, request{req.Header, payload})
	w.WriteHeader(http.StatusNoContent)
}

func (r *recorder) all(_ context.Context, topic string) (log []postrider.Message, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.log {
		if m.Topic == topic {
			log = append(log, m)
		}
	}
	return log, nil
}

// foreign records a request of another sender, with an id that is not a UUID.
func (r *recorder) foreign(_ context.Context, payload []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.raw = append(r.raw, request{http.Header{"Webhook-Id": {fmt.Sprint("msg_", len(r.raw))}}, payload})
	return nil
}

// answers makes the receiver answer the topic's messages with status, until the returned
// function is called.
func (r *recorder) answers(topic string, status int) func(context.Context) error {
	set := func(status int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.status[topic] = status
	}
	set(status)
	return func(context.Context) error { set(0); return nil }
}

// read decodes a request independently, by the README's table of headers.
func read(h http.Header, payload []byte) (m postrider.Message, err error) {
	values := map[string]string{}
	for name, v := range h {
		values[strings.ToLower(name)] = v[0]
	}
	for name := range strings.SplitSeq(values["postrider-encoded"], ",") {
		if name == "" {
			continue
		}
		if name, err = url.QueryUnescape(name); err != nil {
			return m, err
		}
		if values[name], err = url.PathUnescape(values[name]); err != nil {
			return m, err
		}
	}
	m = postrider.Message{
		ID: values["postrider-id"], Topic: values["postrider-topic"], Key: values["postrider-key"],
		Type: values["postrider-type"], ContentType: values["content-type"], Payload: payload,
	}
	if _, plain := values["postrider-id"]; plain && m.ID != values["webhook-id"] {
		return m, fmt.Errorf("ids %q and %q", m.ID, values["webhook-id"])
	}
	if v := values["postrider-version"]; v != "" {
		if m.Version, err = strconv.ParseInt(v, 10, 64); err != nil {
			return m, err
		}
	}
	if v := values["postrider-schema-version"]; v != "" {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			return m, err
		}
		m.SchemaVersion = int32(n)
	}
	if v := values["postrider-time"]; v != "" {
		if m.Time, err = time.Parse(time.RFC3339Nano, v); err != nil {
			return m, err
		}
	}
	for name, value := range values {
		bare, escaped := strings.CutPrefix(name, "postrider-h-")
		if escaped {
			if bare, err = url.PathUnescape(bare); err != nil {
				return m, err
			}
		}
		switch {
		case escaped:
		case strings.HasPrefix(name, "postrider-"), strings.HasPrefix(name, "webhook-"),
			name == "content-type", name == "content-length", name == "user-agent", name == "authorization":
			continue
		}
		if m.Headers == nil {
			m.Headers = map[string]string{}
		}
		m.Headers[bare] = value
	}
	return m, nil
}

func loopback() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }

const secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

func endpoint(url string) httpbroker.Endpoint {
	return httpbroker.Endpoint{URL: url, Allow: loopback(), Secrets: httpbroker.Static(secret), Timeout: 5 * time.Second}
}

func newSink(t *testing.T, opts *httpbroker.SinkOptions, endpoints ...httpbroker.Endpoint) *httpbroker.Sink {
	t.Helper()
	if opts == nil { // the endpoints of these tests are never slow, the machine may be
		opts = &httpbroker.SinkOptions{Patience: 10 * time.Second}
	}
	s, err := httpbroker.NewSink(endpoints, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

const largest = 1 << 20

// env has a receiver for the topics, behind a proxy: one endpoint, or one per topic.
func env(t *testing.T, many bool) *brokertest.Env {
	t.Helper()
	r := &recorder{status: map[string]int{}, limit: map[string]int{}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	proxy, err := faultproxy.New(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	topics := []string{topic}
	for n := range 16 {
		topics = append(topics, fmt.Sprintf("made-%d", n))
	}
	endpoints := func(url string) (all []httpbroker.Endpoint) {
		for _, topic := range topics {
			e := endpoint(url)
			e.Name, e.Topics = topic, []string{topic}
			all = append(all, e)
		}
		if !many {
			all = all[:1]
			all[0].Topics = topics
		}
		return all
	}
	patient := &httpbroker.SinkOptions{Patience: 8 * time.Second} // a busy machine must not count as a slow endpoint
	sink := newSink(t, patient, endpoints("http://"+proxy.Addr())...)
	from := sources(t, r)
	e := &brokertest.Env{
		Sink: sink, Topic: topic, Missing: "nowhere", TooLarge: largest + 1<<10, Largest: largest - 1<<10,
		Log:   func(ctx context.Context) ([]postrider.Message, error) { return r.all(ctx, topic) },
		LogOf: r.all, Faults: proxy, Second: newSink(t, patient, endpoints(server.URL)...), Stop: sink.Close,
		Source: from.source, Mortal: from.mortal, Flaky: from.flaky, Foreign: r.foreign,
		Routed: func(_ context.Context, route envelope.Router) (broker.Sink, error) {
			return newSink(t, &httpbroker.SinkOptions{Patience: patient.Patience, Route: route}, endpoints(server.URL)...), nil
		},
		Without: map[string]string{
			"sink/dedup":    "an endpoint takes what is sent again",
			"source/extend": "a request has no time limit of ours",
			"sink/declared": "Info declares no limit: an endpoint has its own",
		},
	}
	if many {
		e.Operator = operator(r)
	}
	return e
}

// operator changes the receiver's answers to one topic.
func operator(r *recorder) brokertest.Operator {
	var made atomic.Int64
	next := func(context.Context) (string, error) { return fmt.Sprintf("made-%d", made.Add(1)-1), nil }
	var again sync.Map
	return brokertest.Operator{
		Make: next,
		MakeSmall: func(ctx context.Context) (string, int, error) {
			topic, err := next(ctx)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.limit[topic] = 1000
			return topic, 1001, err
		},
		Delete: func(_ context.Context, topic string) error {
			again.Store(topic, r.answers(topic, http.StatusNotFound))
			return nil
		},
		Again: func(ctx context.Context, topic string) error {
			undo, _ := again.Load(topic)
			return undo.(func(context.Context) error)(ctx)
		},
		Fill: func(_ context.Context, topic string) (func(context.Context) error, error) {
			return r.answers(topic, http.StatusServiceUnavailable), nil
		},
		Revoke: func(_ context.Context, topic string) (func(context.Context) error, error) {
			return r.answers(topic, http.StatusForbidden), nil
		},
	}
}

// Promises: L, O
func TestManyEndpoints(t *testing.T) {
	brokertest.Run(t, func(t *testing.T) *brokertest.Env {
		e := env(t, true)
		e.Server = "HTTP, an endpoint per topic"
		return e
	})
}

// TestOneEndpoint runs the suite with a single endpoint, where no other has to be
// protected from a slow one.
func TestOneEndpoint(t *testing.T) {
	t.Parallel()
	names := []string{"sink/cut", "sink/frozen", "sink/late", "sink/middle", "sink/mute", "sink/order", "sink/rejected", "sink/slow", "sink/stop", "sink/window"}
	brokertest.RunSome(t, names, func(t *testing.T) *brokertest.Env {
		e := env(t, false)
		e.Server = "HTTP, one endpoint for all topics"
		return e
	})
}

var (
	_ broker.Sink   = (*httpbroker.Sink)(nil)
	_ broker.Source = (*httpbroker.Source)(nil)
)
