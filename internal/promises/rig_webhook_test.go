package promises

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/httpbroker"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/lab/brokers"
)

// endpoint is a receiver of webhooks that shares no code with the sink. Accepted messages
// survive its server, as if they were in a database.
type endpoint struct {
	addr   string
	server *http.Server
	still  sync.RWMutex // held while the process is frozen

	mu       sync.Mutex
	password string              // the required token; "": none
	topics   map[string]int      // the largest accepted payload of each topic
	answers  map[string]int      // the status for a topic's messages
	log      map[string][]string // payloads by topic
}

func startWebhook(t *testing.T) *server {
	t.Helper()
	s, _ := webhookServer(t)
	return s
}

func webhookServer(t *testing.T) (*server, *endpoint) {
	t.Helper()
	e := &endpoint{addr: "127.0.0.1:0", topics: map[string]int{}, answers: map[string]int{}, log: map[string][]string{}}
	do(t, e.Restart)
	t.Cleanup(func() { _ = e.server.Close() })
	sink := func(t *testing.T, addr string) broker.Sink { return webhookSink(t, addr, nil) }
	answers := func(status int) func(context.Context, string) (func(context.Context) error, error) {
		return func(_ context.Context, topic string) (func(context.Context) error, error) {
			e.answer(topic, status)
			return func(context.Context) error { e.answer(topic, 0); return nil }, nil
		}
	}
	b := &brokers.Broker{
		Name: "webhook", Process: e,
		Make: func(_ context.Context, topic brokers.Topic) error {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.topics[topic.Name] = topic.MaxBytes
			return nil
		},
		Read: func(_ context.Context, topic string, each func(brokers.Record)) error {
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, payload := range e.log[topic] {
				each(brokers.Record{Payload: []byte(payload)})
			}
			return nil
		},
		Remove: func(_ context.Context, topic string) error {
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(e.topics, topic)
			delete(e.log, topic)
			return nil
		},
		Full: answers(http.StatusTooManyRequests), Refuse: answers(http.StatusUnprocessableEntity),
	}
	return &server{
		Broker: b, tooBig: "HTTP_413", kills: 2, blames: true,
		sink: func(t *testing.T) broker.Sink { return sink(t, e.addr) },
		through: func(t *testing.T) (broker.Sink, *faultproxy.Proxy) {
			p := proxied(t, e.addr)
			return sink(t, p.Addr()), p
		},
	}, e
}

func webhookSink(t *testing.T, addr string, authorization httpbroker.Credential) broker.Sink {
	t.Helper()
	s, err := httpbroker.NewSink([]httpbroker.Endpoint{{
		URL: "http://" + addr + "/in", Unsigned: true, Authorization: authorization, Timeout: 2 * time.Second,
		Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Ports: []uint16{netip.MustParseAddrPort(addr).Port()},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Restart listens on the server's earlier address.
func (e *endpoint) Restart() error {
	l, err := net.Listen("tcp", e.addr)
	if err != nil {
		return err
	}
	e.addr = l.Addr().String()
	s := &http.Server{Handler: e, ReadHeaderTimeout: time.Minute}
	e.server = s
	go func() { _ = s.Serve(l) }() // ends with the listener
	return nil
}

func (e *endpoint) Kill() error { return e.server.Close() }

// Stop lets running requests end.
func (e *endpoint) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return e.server.Shutdown(ctx)
}

func (e *endpoint) Freeze() error { e.still.Lock(); return nil }
func (e *endpoint) Thaw() error   { e.still.Unlock(); return nil }

// waits returns when the process is not frozen.
func (e *endpoint) waits() {
	e.still.RLock()
	defer e.still.RUnlock()
}

func (e *endpoint) answer(topic string, status int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answers[topic] = status
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.waits()
	payload, err := io.ReadAll(r.Body)
	if err != nil {
		return // an interrupted request is not accepted
	}
	status := e.take(r.Header, payload)
	e.waits()
	w.WriteHeader(status)
}

// take accepts a message, or returns the status of the refusal.
func (e *endpoint) take(h http.Header, payload []byte) (status int) {
	topic := h.Get("Postrider-Topic")
	e.mu.Lock()
	defer e.mu.Unlock()
	most, known := e.topics[topic]
	switch {
	case e.password != "" && h.Get("Authorization") != "Bearer "+e.password:
		return http.StatusUnauthorized
	case e.answers[topic] != 0:
		return e.answers[topic]
	case !known:
		return http.StatusNotFound
	case len(payload) > most:
		return http.StatusRequestEntityTooLarge
	}
	e.log[topic] = append(e.log[topic], string(payload))
	return http.StatusNoContent
}

// guardedWebhook requires a token.
func guardedWebhook(t *testing.T, file string) *guarded {
	t.Helper()
	s, e := webhookServer(t)
	set := func(password string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.password = password
	}
	set(first)
	bearer := func(ctx context.Context) (string, error) {
		text, err := httpbroker.File(file)(ctx)
		if err != nil || text == "" {
			return "", errors.Join(err, errors.New("no token"))
		}
		return fmt.Sprint("Bearer ", text), nil
	}
	return &guarded{
		server: *s, wrong: "answer 401", forbidden: "answer 403",
		open:     func(t *testing.T) broker.Sink { t.Helper(); return webhookSink(t, e.addr, bearer) },
		password: func(_ *testing.T, next string) { set(next) },
		allow: func(_ *testing.T, topic string, allowed bool) {
			status := http.StatusForbidden
			if allowed {
				status = 0
			}
			e.answer(topic, status)
		},
	}
}
