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

// ReceiverOptions of NewReceiver. One of Secrets and Unsigned is required.
type ReceiverOptions struct {
	// Secrets verify requests, see [ParseSecrets]; any one that fits will do.
	Secrets Credential
	// Unsigned takes requests from everybody who reaches the handler.
	Unsigned bool
	// Tolerance is how far a request's timestamp may be from now. 0: 5 min.
	Tolerance time.Duration
	// MaxBytes is the largest payload that is read. 0: 1 MiB.
	MaxBytes int64
	// MaxWaiting is the most verified requests that wait for their answer; more are
	// asked to come again later. As many bodies are read at once: one more ends the
	// one that has taken longest. 0: 256.
	MaxWaiting int
	// ReadTimeout is how long a request's body may take. 0: 15 s.
	ReadTimeout time.Duration
	// Topic of messages whose sender names none. "": "webhooks".
	Topic string
}

// Receiver is an http.Handler for webhooks and a broker.Source. A request is
// answered when its delivery is settled: 204 when it was acknowledged, 500 when it
// was given back, so that its sender sends it again. It keeps nothing itself: what
// is not settled when the process ends, the sender has. It is safe for concurrent use.
//
// The signature covers webhook-id, webhook-timestamp and the payload, not other
// headers; so a delivery's ID comes from webhook-id alone, and the rest is as
// trustworthy as the connection. In structured CloudEvents everything is signed.
type Receiver struct {
	opts  ReceiverOptions
	codec envelope.Codec
	keys  *cached[[]Secret]
	slots chan struct{}
	inlet inlet

	mu     sync.Mutex
	queue  []*entry           // not with the consumer yet, at most MaxWaiting
	byID   map[string]*entry  // waiting or with the consumer
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
	out      bool          // with the consumer
	settled  chan struct{} // closed when answer is set
	told     chan struct{} // closed when it is, and nobody waits for it any more
	answer   answer
}

// answer is what requests are answered.
type answer struct {
	status int
	delay  time.Duration // Retry-After, 0: none
	text   string
}

// barrier holds a key's later messages off until the one that was given back has
// come again.
type barrier struct {
	id    string
	until time.Time
}

// barTime is how long a key waits for a message that does not come again.
const barTime = 30 * time.Second

// retryLater is what a request is asked to wait for where nothing better is known.
const retryLater = time.Second

// ErrClosed is what a receiver answers after Close.
var ErrClosed = errors.New("httpbroker: the receiver is closed")

// NewReceiver returns a receiver. It does no I/O but reading the credential.
func NewReceiver(opts ReceiverOptions) (*Receiver, error) {
	if (opts.Secrets == nil) != opts.Unsigned {
		return nil, errors.New("httpbroker: receiver: give secrets, so that forged requests are rejected, or set Unsigned")
	}
	r := &Receiver{opts: opts, codec: codec(), byID: make(map[string]*entry), barred: make(map[string]barrier), change: make(chan struct{})}
	if opts.Secrets != nil {
		r.keys = &cached[[]Secret]{from: opts.Secrets, read: ParseSecrets}
		ctx := context.Background() //nolint:forbidigo // a file or a variable
		if _, err := r.keys.get(ctx); err != nil {
			return nil, fmt.Errorf("httpbroker: receiver: %w", err)
		}
	}
	o := &r.opts
	if o.Tolerance <= 0 {
		o.Tolerance = 5 * time.Minute
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 1 << 20
	}
	if o.MaxWaiting <= 0 {
		o.MaxWaiting = 256
	}
	if o.ReadTimeout <= 0 {
		o.ReadTimeout = 15 * time.Second
	}
	if o.Topic == "" {
		o.Topic = "webhooks"
	}
	r.slots = make(chan struct{}, o.MaxWaiting)
	r.inlet.most = o.MaxWaiting
	return r, nil
}

// ServeHTTP implements http.Handler.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		reply(w, answer{status: http.StatusMethodNotAllowed, text: "webhooks are posted"})
		return
	}
	m, id, refused := r.read(w, req)
	if refused.status != 0 {
		reply(w, refused)
		return
	}
	select { // after the body was read and verified: a stranger keeps nobody waiting
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	default:
		reply(w, answer{status: http.StatusTooManyRequests, delay: retryLater, text: "too many requests wait"})
		return
	}
	e, refused := r.enter(m, id)
	if e == nil {
		reply(w, refused)
		return
	}
	defer r.leave(e)
	select {
	case <-e.settled:
		reply(w, e.answer)
		_ = http.NewResponseController(w).Flush() // Settle waits for it; not every server can
	case <-req.Context().Done(): // the sender has gone, and will come again
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

// received is a request's message, or what cannot be read of it.
type received struct {
	message postrider.Message
	err     error
}

// read takes a request in and verifies it.
func (r *Receiver) read(w http.ResponseWriter, req *http.Request) (m received, id string, refused answer) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(r.opts.ReadTimeout)) // not every server can
	b := r.inlet.begin(func() error { return control.SetReadDeadline(time.Now()) })
	if b == nil {
		return m, "", crowded()
	}
	payload, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.opts.MaxBytes))
	ended := r.inlet.end(b)
	_ = control.SetReadDeadline(time.Time{})
	if err != nil && ended {
		return m, "", crowded()
	}
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return m, "", answer{status: http.StatusRequestEntityTooLarge, text: fmt.Sprintf("the payload is larger than %d bytes", r.opts.MaxBytes)}
		}
		return m, "", answer{status: http.StatusBadRequest, text: "the body broke off"}
	}
	id = req.Header.Get(headerID)
	if r.keys != nil {
		secrets, err := r.keys.get(req.Context())
		if err == nil {
			err = Verify(secrets, id, req.Header.Get(headerTimestamp), req.Header.Get(headerSignature), payload, time.Now(), r.opts.Tolerance)
		}
		if err != nil {
			return m, "", answer{status: http.StatusUnauthorized, text: err.Error()}
		}
	}
	if id == "" || len(id) > postrider.MaxKeyLen {
		return m, "", answer{status: http.StatusBadRequest, text: headerID + " is missing or too long"}
	}
	return r.decode(req.Header, payload, id), id, answer{}
}

func (r *Receiver) decode(h http.Header, payload []byte, id string) received {
	m, err := r.codec.Decode(envelope.Record{Topic: r.opts.Topic, Headers: headers(h), Payload: payload, Time: time.Now().UTC(), Origin: "webhook:" + id})
	if uuid := (&postrider.Message{ID: id, Topic: "t"}); uuid.Validate() == nil {
		m.ID = id
	} else { // an id that is not signed decides nothing
		bare, _ := r.codec.Decode(envelope.Record{Origin: "webhook:" + id})
		m.ID = bare.ID
	}
	return received{message: m, err: err}
}

// enter queues the message, or joins the request that brought it before.
func (r *Receiver) enter(m received, id string) (*entry, answer) {
	sum := sha256.Sum256(m.message.Payload)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, answer{status: http.StatusServiceUnavailable, delay: retryLater, text: "shutting down"}
	}
	if e := r.byID[id]; e != nil {
		if e.sum != sum {
			return nil, answer{status: http.StatusConflict, text: "another message of this webhook-id is being worked on"}
		}
		e.waiters++
		return e, answer{}
	}
	if key := m.message.Key; key != "" {
		if b, ok := r.barred[key]; ok {
			if b.id != id && time.Now().Before(b.until) {
				return nil, answer{status: http.StatusInternalServerError, text: "an earlier message of the key must come first"}
			}
			delete(r.barred, key)
		}
	}
	e := &entry{id: id, sum: sum, waiters: 1, settled: make(chan struct{}), told: make(chan struct{})}
	e.delivery = broker.Delivery{Message: m.message, Origin: "webhook:" + id, Token: e, Err: m.err}
	r.byID[id] = e
	r.queue = append(r.queue, e)
	close(r.change)
	r.change = make(chan struct{})
	return e, answer{}
}

// leave takes a request away. A message that nobody waits for any more, and that
// the consumer has not seen, is dropped.
func (r *Receiver) leave(e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.waiters--; e.waiters > 0 {
		return
	}
	select {
	case <-e.settled:
		close(e.told)
	default:
		if !e.out {
			r.settle(e, answer{status: http.StatusServiceUnavailable})
		}
	}
}

// settle ends an entry, once.
func (r *Receiver) settle(e *entry, a answer) bool {
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
	delete(r.byID, e.id)
	if !e.out { // senders come again while a consumer takes nothing: what they left does not pile up
		r.queue = slices.DeleteFunc(r.queue, func(q *entry) bool { return q == e })
	}
	return true
}

// Receive implements broker.Source.
func (r *Receiver) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			return nil, ErrClosed
		}
		ds, change := r.take(max(limit, 1)), r.change
		r.mu.Unlock()
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

// take hands out what waits, in the order of arrival.
func (r *Receiver) take(limit int) []broker.Delivery {
	var ds []broker.Delivery
	for len(r.queue) > 0 && len(ds) < limit {
		e := r.queue[0]
		r.queue[0] = nil
		r.queue = r.queue[1:]
		e.out = true
		ds = append(ds, e.delivery)
	}
	return ds
}

// Settle implements broker.Source: it lets the requests be answered, and returns
// when the answers are on their way.
func (r *Receiver) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	if err := r.decide(verdicts); err != nil {
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

func (r *Receiver) decide(verdicts []broker.Verdict) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, v := range verdicts {
		e, ok := v.Delivery.Token.(*entry)
		switch {
		case !ok:
			return fmt.Errorf("httpbroker: settle: verdict %d (%s): not a delivery of this receiver", i, v.Delivery.Origin)
		case r.closed:
			return ErrClosed
		case v.Ack:
			r.settle(e, answer{status: http.StatusNoContent})
		default:
			r.giveBack(e, v.Delay)
		}
	}
	return nil
}

// giveBack answers a message, and those of its key that wait behind it, so that
// they come again.
func (r *Receiver) giveBack(e *entry, delay time.Duration) {
	if !r.settle(e, answer{status: http.StatusInternalServerError, delay: delay, text: "not done: send it again"}) {
		return
	}
	key := e.delivery.Message.Key
	if key == "" {
		return
	}
	now := time.Now()
	for k, b := range r.barred {
		if now.After(b.until) {
			delete(r.barred, k)
		}
	}
	r.barred[key] = barrier{id: e.id, until: now.Add(delay + barTime)}
	for _, behind := range slices.Clone(r.queue) {
		if behind.delivery.Message.Key == key {
			r.settle(behind, answer{status: http.StatusInternalServerError, delay: delay, text: "an earlier message of the key must come first"})
		}
	}
}

// Extend implements broker.Source: how long a sender waits is its own affair.
func (r *Receiver) Extend(context.Context, []broker.Delivery) error { return nil }

// Info implements broker.Source.
func (r *Receiver) Info() broker.SourceInfo { return broker.SourceInfo{Name: "http"} }

// Close asks all senders to come again later and ends Receive. The caller shuts
// its http.Server down after that.
func (r *Receiver) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	for _, e := range r.byID { // order does not matter
		r.settle(e, answer{status: http.StatusServiceUnavailable, delay: retryLater, text: "shutting down"})
	}
	close(r.change)
}
