package pubsubbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/googleapis/gax-go/v2"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/awaited"
	"github.com/postrider/postrider/broker/internal/keychain"
	"github.com/postrider/postrider/envelope"
)

const mostWindow = 1000

// SinkOptions of [Open] and [NewSink].
type SinkOptions struct {
	// Project has the topics. Required.
	Project string
	// Route says what becomes of each message: the topic, the key that is the ordering
	// key, format and more headers. nil: the message's own, plain.
	Route envelope.Router
	// Prefix stands before every topic.
	Prefix string
	// Window requests are under way at once over all calls; 64 if zero.
	Window int
	// Timeout is how long an answer may take; 30 s if zero.
	Timeout time.Duration
}

// Sink publishes to Pub/Sub. It is safe for concurrent use.
type Sink struct {
	opts  SinkOptions
	codec envelope.Codec
	line  line[*pubsub.TopicAdminClient]
	slots chan struct{}

	awaited awaited.Topics

	life context.Context // ends with Close
	end  context.CancelFunc
}

// NewSink returns a sink on client, which stays the caller's. The client's retries are
// not used. It does no I/O. opts must name a project. Close ends the sink's calls.
func NewSink(client *pubsub.TopicAdminClient, opts *SinkOptions) (*Sink, error) {
	if client == nil {
		return nil, errors.New("pubsubbroker: sink: a client is required")
	}
	s, err := newSink(opts)
	if err != nil {
		return nil, err
	}
	s.line.client, s.line.made = client, true
	return s, nil
}

func newSink(opts *SinkOptions) (*Sink, error) {
	switch {
	case opts == nil || opts.Project == "":
		return nil, errors.New("pubsubbroker: sink: a project is required")
	case !projectShape.MatchString(opts.Project):
		return nil, fmt.Errorf("pubsubbroker: sink: %w (got %q)", errProject, opts.Project)
	case opts.Window < 0 || opts.Window > mostWindow || opts.Timeout < 0:
		return nil, fmt.Errorf("pubsubbroker: sink: Window must be from 0 to %d and Timeout not negative (got %d, %v)", mostWindow, opts.Window, opts.Timeout)
	}
	o := *opts
	o.Window, o.Timeout = cmp.Or(o.Window, 64), cmp.Or(o.Timeout, 30*time.Second)
	s := &Sink{opts: o, codec: wireCodec(), slots: make(chan struct{}, o.Window)}
	s.life, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	return s, nil
}

// Close ends the calls that are under way, with errors, and the connections.
func (s *Sink) Close() {
	s.end()
	s.line.end()
}

// Info implements broker.Sink.
func (s *Sink) Info() broker.Info {
	return broker.Info{
		Name: "pubsub", Takes: "topic", Held: 12_288, MaxMessageBytes: mostBytes - overhead, MaxTopicBytes: 255, TopicProblem: problem, Codec: s.codec,
		Ping: s.Ping, Probe: s.Probe, Advise: s.Advise, Preview: s.Preview,
	}
}

// delivery is one Deliver call. Each message is in the hands of one goroutine.
type delivery struct {
	s     *Sink
	ctx   context.Context
	begin context.Context // no request is begun when it is over
	msgs  []postrider.Message
	errs  []error
	next  keychain.Chain
}

// Deliver implements broker.Sink.
func (s *Sink) Deliver(ctx context.Context, b broker.Batch) []error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	begin, cancel := keychain.Beginning(ctx)
	defer cancel()
	d := &delivery{s: s, ctx: ctx, begin: begin, msgs: b.Messages, errs: make([]error, len(b.Messages))}
	var (
		first []int
		alone []int // messages without a key
		wg    sync.WaitGroup
	)
	d.next, first = keychain.Of(b.Messages)
	for _, i := range first {
		if b.Messages[i].Key == "" {
			alone = append(alone, i)
			continue
		}
		if err := d.enter(); err != nil {
			d.fail(i, err)
			continue
		}
		wg.Go(func() { defer s.leave(); d.key(i) })
	}
	if len(alone) > 0 {
		if err := d.enter(); err != nil {
			for _, i := range alone {
				d.errs[i] = err
			}
		} else {
			d.apart(alone)
			s.leave()
		}
	}
	wg.Wait()
	for _, err := range d.errs {
		if err != nil {
			return d.errs
		}
	}
	return nil
}

// enter takes a slot for requests.
func (d *delivery) enter() error {
	if err := d.late(); err != nil {
		return err
	}
	select {
	case d.s.slots <- struct{}{}:
		return nil
	case <-d.begin.Done():
		return d.late()
	}
}

// late returns an error when no request may be begun any more.
func (d *delivery) late() error {
	if err := d.s.ended(d.ctx); err != nil {
		return err
	}
	if d.begin.Err() != nil {
		return keychain.Late()
	}
	return nil
}

func (s *Sink) leave() { <-s.slots }

func (s *Sink) ended(ctx context.Context) error {
	if s.life.Err() != nil {
		return broker.Outage(errClosed, "", "")
	}
	return ctx.Err()
}

// fail notes err for message i and bars the rest of its key.
func (d *delivery) fail(i int, err error) {
	d.errs[i] = err
	d.next.Bar(i, d.errs, err)
}

// request is messages of one topic and one ordering key, or of none.
type request struct {
	topic, key string
	msgs       []*pubsubpb.PubsubMessage
	of         []int // the messages
	bytes      int
}

func (r *request) takes(e *entry) bool {
	return len(r.of) == 0 || r.topic == e.topic && r.key == e.msg.GetOrderingKey() && len(r.of) < mostMessages && r.bytes+e.bytes <= mostBytes-overhead
}

func (r *request) add(i int, e *entry) {
	r.topic, r.key = e.topic, e.msg.GetOrderingKey()
	r.msgs, r.of, r.bytes = append(r.msgs, e.msg), append(r.of, i), r.bytes+e.bytes
}

// key sends the messages of a key, from message i on. A request is stored as a whole or
// not at all, and the next one is sent after its answer.
func (d *delivery) key(i int) {
	var (
		w envelope.Wire
		r request
	)
	for more := true; more; {
		e, _, err := d.s.encode(&w, &d.msgs[i])
		if err != nil {
			if d.send(&r) {
				d.fail(i, err)
			}
			return
		}
		if !r.takes(e) {
			if !d.send(&r) {
				return
			}
			r = request{}
		}
		r.add(i, e)
		n := d.next.Next(i)
		i, more = n, n > 0
	}
	d.send(&r)
}

// send sends a request of a key and reports success. Otherwise it has noted what became
// of the rest of the key.
func (d *delivery) send(r *request) bool {
	if len(r.of) == 0 {
		return true
	}
	err := d.publish(r)
	if err == nil {
		return true
	}
	if ownFault(err) && len(r.of) > 1 { // one of them is the reason
		for n := range r.of {
			one := request{topic: r.topic, key: r.key, msgs: r.msgs[n : n+1], of: r.of[n : n+1]}
			if err := d.publish(&one); err != nil {
				d.fail(r.of[n], err)
				return false
			}
		}
		return true
	}
	last := r.of[len(r.of)-1]
	for _, i := range r.of {
		d.errs[i] = err
	}
	d.fail(last, err)
	return false
}

// apart sends messages that have no order.
func (d *delivery) apart(all []int) {
	var w envelope.Wire
	open := make(map[string]*request)
	for _, i := range all {
		e, _, err := d.s.encode(&w, &d.msgs[i])
		if err != nil {
			d.errs[i] = err
			continue
		}
		at := e.topic + "\x00" + e.msg.GetOrderingKey() // a route may give it a key
		r := open[at]
		if r == nil {
			r = &request{}
			open[at] = r
		}
		if !r.takes(e) {
			d.scatter(r)
			*r = request{}
		}
		r.add(i, e)
	}
	for _, r := range open {
		d.scatter(r)
	}
}

// scatter sends a request of messages that do not wait for each other.
func (d *delivery) scatter(r *request) {
	err := d.publish(r)
	if err == nil {
		return
	}
	for n, i := range r.of {
		d.errs[i] = err
		if ownFault(err) && len(r.of) > 1 {
			d.errs[i] = d.publish(&request{topic: r.topic, key: r.key, msgs: r.msgs[n : n+1], of: r.of[n : n+1]})
		}
	}
}

func ownFault(err error) bool {
	e := broker.Classify(err)
	return e != nil && e.Class == broker.ClassRejected
}

func (s *Sink) topic(name string) string { return "projects/" + s.opts.Project + "/topics/" + name }

// once turns the client's retries off: the relay retries, as it knows which messages may be sent again.
func once() gax.CallOption { return gax.WithRetry(func() gax.Retryer { return nil }) }

// publish sends one request unless it is late for that, or nobody would get the messages.
func (d *delivery) publish(r *request) error {
	err := d.late()
	if err == nil {
		err = d.s.ready(d.ctx, r.topic)
	}
	if err == nil {
		err = d.late() // ready may have asked
	}
	if err != nil {
		return err
	}
	return d.s.publish(d.ctx, r)
}

func (s *Sink) publish(ctx context.Context, r *request) error {
	client, err := s.line.get(ctx)
	if err != nil {
		return lacking(err)
	}
	call, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	out, err := client.Publish(call, &pubsubpb.PublishRequest{Topic: s.topic(r.topic), Messages: r.msgs}, once())
	if err != nil {
		err = refusal(err, subject{kind: "topic", project: s.opts.Project, name: r.topic, permission: "pubsub.topics.publish", sending: true})
		return s.noted(r.topic, s.failed(call, client, err))
	}
	if len(out.GetMessageIds()) != len(r.msgs) {
		return broker.Unknown(errIDs, "", r.topic)
	}
	return nil
}

// failed returns err, which a request on client got. The connection may be half-open, or
// its credentials not be accepted: the next request has another one.
func (s *Sink) failed(call context.Context, client *pubsub.TopicAdminClient, err error) error {
	if errors.Is(call.Err(), context.DeadlineExceeded) || rejected(err) {
		s.line.doubt(client, s.opts.Timeout)
	}
	return err
}
