package httpbroker

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// SourceOptions configures [OpenSource] and [NewSource]. One of Secrets and Unsigned is required.
type SourceOptions struct {
	// Secrets verify requests, see [ParseSecrets]; one matching secret suffices.
	Secrets Credential
	// Unsigned accepts requests from every client that reaches the handler.
	Unsigned bool
	// Tolerance is the allowed distance between a request's timestamp and now. 0: 5 min.
	Tolerance time.Duration
	// MaxMessageBytes is the largest payload that is read. 0: 1 MiB.
	MaxMessageBytes int
	// MaxHeld is the most verified requests that wait for their answer; more get 429
	// with a Retry-After. It is also the most bodies that are read at once: one more ends
	// the oldest read. 0: 256.
	MaxHeld int
	// ReadTimeout bounds the time for reading a request's body. 0: 15 s.
	ReadTimeout time.Duration
	// Topic is the topic of messages whose sender names none. "": "webhooks".
	Topic string
}

// Source is an http.Handler for webhooks and a broker.Source. A request is
// answered when its delivery is settled: 204 when it was acknowledged, 500 when it
// was given back, so that its sender sends it again. It stores nothing: the sender still
// has messages that are unsettled when the process ends. It is safe for concurrent use.
//
// The signature covers webhook-id, webhook-timestamp and the payload, not other
// headers. So a delivery's ID comes from webhook-id alone, and the rest is as
// trustworthy as the connection. In structured CloudEvents all fields are signed.
type Source struct {
	close func() // ends the server that OpenSource started; nil: the caller has one
	opts  SourceOptions
	codec envelope.Codec
	keys  *cached[[]Secret]
	slots chan struct{}
	inlet inlet

	mu     sync.Mutex
	queue  []*entry           // not received by the consumer yet, at most MaxHeld
	byID   map[string]*entry  // queued or received by the consumer
	barred map[string]barrier // by key
	change chan struct{}      // closed and replaced when queue grows
	closed bool
}

// entry is one message that requests wait for.
type entry struct {
	id       string
	sum      [sha256.Size]byte // of the payload
	delivery broker.Delivery
	waiters  int
	out      bool          // received by the consumer
	settled  chan struct{} // closed when answer is set
	told     chan struct{} // closed when answer is set and no request waits for it any more
	answer   answer
}

// answer is the answer to requests.
type answer struct {
	status int
	delay  time.Duration // Retry-After; 0: no such header
	text   string
}

// barrier bars a key's later messages until the message that was given back
// has been delivered again.
type barrier struct {
	id    string
	until time.Time
}

// barTime is how long a key waits for a message that its sender does not send again.
const barTime = 30 * time.Second

// retryLater is the default Retry-After.
const retryLater = time.Second

// ErrClosed is returned by a source after Close.
var ErrClosed = errors.New("httpbroker: source is closed")

// NewSource returns a source. It takes no client: the application serves it as an
// http.Handler. It does no I/O except reading the credential. opts must have one of Secrets
// and Unsigned.
func NewSource(opts *SourceOptions) (*Source, error) {
	if opts == nil {
		opts = &SourceOptions{}
	}
	if (opts.Secrets == nil) != opts.Unsigned {
		return nil, errors.New("httpbroker: source: set Secrets, so that forged requests are rejected, or Unsigned")
	}
	s := &Source{opts: *opts, codec: codec(), byID: make(map[string]*entry), barred: make(map[string]barrier), change: make(chan struct{})}
	if opts.Secrets != nil {
		s.keys = &cached[[]Secret]{from: opts.Secrets, read: ParseSecrets}
		ctx := context.Background() //nolint:forbidigo // a file or a variable
		if _, err := s.keys.get(ctx); err != nil {
			return nil, fmt.Errorf("httpbroker: source: %w", err)
		}
	}
	o := &s.opts
	if o.Tolerance <= 0 {
		o.Tolerance = 5 * time.Minute
	}
	if o.MaxMessageBytes <= 0 {
		o.MaxMessageBytes = 1 << 20
	}
	if o.MaxHeld <= 0 {
		o.MaxHeld = 256
	}
	if o.ReadTimeout <= 0 {
		o.ReadTimeout = 15 * time.Second
	}
	if o.Topic == "" {
		o.Topic = "webhooks"
	}
	s.slots = make(chan struct{}, o.MaxHeld)
	s.inlet.most = o.MaxHeld
	return s, nil
}

// ServeHTTP implements http.Handler.
func (s *Source) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		reply(w, answer{status: http.StatusMethodNotAllowed, text: "method not allowed: use POST"})
		return
	}
	m, id, refused := s.read(w, req)
	if refused.status != 0 {
		reply(w, refused)
		return
	}
	select { // after the body was read and verified: unverified requests take no slot
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		reply(w, answer{status: http.StatusTooManyRequests, delay: retryLater, text: "too many requests wait"})
		return
	}
	e, refused := s.enter(m, id)
	if e == nil {
		reply(w, refused)
		return
	}
	defer s.leave(e)
	select {
	case <-e.settled:
		reply(w, e.answer)
		_ = http.NewResponseController(w).Flush() // Settle waits for it; not every server can flush
	case <-req.Context().Done(): // the sender has gone, and will send it again
	}
}

func reply(w http.ResponseWriter, a answer) {
	if a.delay > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((a.delay+time.Second-1)/time.Second)))
	}
	if a.status == http.StatusNoContent {
		w.WriteHeader(a.status)
		return
	}
	http.Error(w, a.text, a.status)
}

// received is a request's message, or the error of decoding it.
type received struct {
	message postrider.Message
	err     error
}

// read reads a request and verifies it.
func (s *Source) read(w http.ResponseWriter, req *http.Request) (m received, id string, refused answer) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.opts.ReadTimeout)) // not every server supports it
	b := s.inlet.begin(func() error { return control.SetReadDeadline(time.Now()) })
	if b == nil {
		return m, "", crowded()
	}
	payload, err := io.ReadAll(http.MaxBytesReader(w, req.Body, int64(s.opts.MaxMessageBytes)))
	ended := s.inlet.end(b)
	_ = control.SetReadDeadline(time.Time{})
	if err != nil && ended {
		return m, "", crowded()
	}
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return m, "", answer{status: http.StatusRequestEntityTooLarge, text: fmt.Sprintf("the payload is larger than %d bytes", s.opts.MaxMessageBytes)}
		}
		return m, "", answer{status: http.StatusBadRequest, text: "the body broke off"}
	}
	id = req.Header.Get(headerID)
	if s.keys != nil {
		secrets, err := s.keys.get(req.Context())
		if err == nil {
			err = Verify(secrets, id, req.Header.Get(headerTimestamp), req.Header.Get(headerSignature), payload, time.Now(), s.opts.Tolerance)
		}
		if err != nil {
			return m, "", answer{status: http.StatusUnauthorized, text: err.Error()}
		}
	}
	if id == "" || len(id) > postrider.MaxKeyLen {
		return m, "", answer{status: http.StatusBadRequest, text: headerID + " is missing or too long"}
	}
	return s.decode(req.Header, payload, id), id, answer{}
}

func (s *Source) decode(h http.Header, payload []byte, id string) received {
	m, err := s.codec.Decode(envelope.Record{Topic: s.opts.Topic, Headers: headers(h), Payload: payload, Time: time.Now().UTC(), Origin: "webhook:" + id})
	if uuid := (&postrider.Message{ID: id, Topic: "t"}); uuid.Validate() == nil {
		m.ID = id
	} else { // an unsigned id is not used
		bare, _ := s.codec.Decode(envelope.Record{Origin: "webhook:" + id})
		m.ID = bare.ID
	}
	return received{message: m, err: err}
}

// enter queues the message, or joins an earlier request for it.
func (s *Source) enter(m received, id string) (*entry, answer) {
	sum := sha256.Sum256(m.message.Payload)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, answer{status: http.StatusServiceUnavailable, delay: retryLater, text: "shutting down"}
	}
	if e := s.byID[id]; e != nil {
		if e.sum != sum {
			return nil, answer{status: http.StatusConflict, text: "another message of this webhook-id is being worked on"}
		}
		e.waiters++
		return e, answer{}
	}
	if key := m.message.Key; key != "" {
		if b, ok := s.barred[key]; ok {
			if b.id != id && time.Now().Before(b.until) {
				return nil, answer{status: http.StatusInternalServerError, text: "an earlier message of the key must come first"}
			}
			delete(s.barred, key)
		}
	}
	e := &entry{id: id, sum: sum, waiters: 1, settled: make(chan struct{}), told: make(chan struct{})}
	e.delivery = broker.Delivery{Message: m.message, Origin: "webhook:" + id, Token: e, Err: m.err}
	s.byID[id] = e
	s.queue = append(s.queue, e)
	close(s.change)
	s.change = make(chan struct{})
	return e, answer{}
}

// leave removes a request. A message without any waiting request that
// the consumer has not received is dropped.
func (s *Source) leave(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.waiters--; e.waiters > 0 {
		return
	}
	select {
	case <-e.settled:
		close(e.told)
	default:
		if !e.out {
			s.settle(e, answer{status: http.StatusServiceUnavailable})
		}
	}
}

// settle sets the answer of an entry and reports whether it was the first to do so.
func (s *Source) settle(e *entry, a answer) bool {
	select {
	case <-e.settled:
		return false
	default:
	}
	e.answer = a
	close(e.settled)
	if e.waiters == 0 {
		close(e.told)
	}
	delete(s.byID, e.id)
	if !e.out { // senders retry while a consumer takes nothing: abandoned messages must not pile up
		s.queue = slices.DeleteFunc(s.queue, func(q *entry) bool { return q == e })
	}
	return true
}

// Receive implements broker.Source.
func (s *Source) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, ErrClosed
		}
		ds, change := s.take(max(limit, 1)), s.change
		s.mu.Unlock()
		if len(ds) > 0 {
			return ds, nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take returns queued deliveries, in the order of arrival.
func (s *Source) take(limit int) []broker.Delivery {
	var ds []broker.Delivery
	for len(s.queue) > 0 && len(ds) < limit {
		e := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		e.out = true
		ds = append(ds, e.delivery)
	}
	return ds
}

// Settle implements broker.Source: it answers the requests, and returns
// when the answers have been sent.
func (s *Source) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	if err := s.decide(verdicts); err != nil {
		return err
	}
	for _, v := range verdicts {
		e, _ := v.Delivery.Token.(*entry)
		select {
		case <-e.told:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *Source) decide(verdicts []broker.Verdict) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, v := range verdicts {
		e, ok := v.Delivery.Token.(*entry)
		switch {
		case !ok:
			return fmt.Errorf("httpbroker: settle: verdict %d (%s): not a delivery of this source", i, v.Delivery.Origin)
		case s.closed:
			return ErrClosed
		case v.Ack:
			s.settle(e, answer{status: http.StatusNoContent})
		default:
			s.giveBack(e, v.Delay)
		}
	}
	return nil
}

// giveBack answers a message, and later ones of its key in the queue, so that
// their senders send them again.
func (s *Source) giveBack(e *entry, delay time.Duration) {
	if !s.settle(e, answer{status: http.StatusInternalServerError, delay: delay, text: "not done: send it again"}) {
		return
	}
	key := e.delivery.Message.Key
	if key == "" {
		return
	}
	now := time.Now()
	for k, b := range s.barred {
		if now.After(b.until) {
			delete(s.barred, k)
		}
	}
	s.barred[key] = barrier{id: e.id, until: now.Add(delay + barTime)}
	for _, behind := range slices.Clone(s.queue) {
		if behind.delivery.Message.Key == key {
			s.settle(behind, answer{status: http.StatusInternalServerError, delay: delay, text: "an earlier message of the key must come first"})
		}
	}
}

// Extend implements broker.Source. It does nothing: the sender decides how long it waits.
func (s *Source) Extend(context.Context, []broker.Delivery) error { return nil }

// Info implements broker.Source.
func (s *Source) Info() broker.SourceInfo { return broker.SourceInfo{Name: "http"} }

// Close asks all senders to send again later and ends Receive, and then the server that
// [OpenSource] started. The caller of [NewSource] shuts its own http.Server down after that.
func (s *Source) Close() {
	if s.close != nil {
		defer s.close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	for _, e := range s.byID { // order does not matter
		s.settle(e, answer{status: http.StatusServiceUnavailable, delay: retryLater, text: "shutting down"})
	}
	close(s.change)
}
