package awsbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/keychain"
	"github.com/postrider/postrider/envelope"
)

// dedupFor is how long a FIFO queue remembers a deduplication id.
const dedupFor = 5 * time.Minute

// SinkOptions of [Open], [NewSink] and [NewTopicSink]. The zero value is for FIFO queues
// of the topics' names. Topics of SNS have the same options as queues.
type SinkOptions struct {
	// Route says what becomes of each message: the topic that names the queue, the key
	// that is the group, format and more headers. nil: the message's own, plain.
	Route envelope.Router
	// Prefix stands before every topic in the queue's name.
	Prefix string
	// Standard is for standard queues. If false, the queues are FIFO queues,
	// and .fifo is added to a name that does not end so. Standard queues keep no order
	// and drop no repetitions.
	Standard bool
	// Account owns the queues; "": that of the ARN, or of the credentials. SNS needs it,
	// as topics are addressed by their ARNs. A message's topic may be a queue's ARN, which
	// has no prefix and no suffix added.
	Account string
	// Window requests are under way at once over all calls; 32 if zero.
	Window int
	// Timeout is how long an answer may take; 30 s if zero.
	Timeout time.Duration
	// MaxMessageBytes is the queues' MaximumMessageSize; if zero 1 MiB, which is the
	// services' limit, and 256 KiB for topics of SNS. Attributes count.
	MaxMessageBytes int
}

// outlet is the target of a sink: the queues of SQS or the topics of SNS.
type outlet interface {
	// name is the queue of a topic.
	name(topic string) string
	// problem returns the fault of a queue's name.
	problem(name string) error
	// send sends one request. Without an error each piece of b has its answer.
	send(ctx context.Context, b *batch) error
	// look reports whether a queue is there.
	look(ctx context.Context, name string) error
	// ping reports whether the service answers and accepts the credentials.
	ping(ctx context.Context) error
}

// Sink publishes to SQS or SNS. It is safe for concurrent use.
type Sink struct {
	to    outlet
	info  broker.Info // of the service
	opts  SinkOptions
	slots chan struct{}
	idle  func() // drops idle connections; nil: they are the caller's

	badName   string // code of a message whose topic is no name
	fansOut   bool   // receivers are unknown: topic and key must be in the headers
	mostBatch int    // bytes

	life context.Context // ends with Close
	end  context.CancelFunc
}

// NewSink returns a sink on client, which stays the caller's. The client's retries are
// not used. It does no I/O. opts may be nil. Close ends the sink's calls.
func NewSink(client *sqs.Client, opts *SinkOptions) (*Sink, error) {
	if client == nil {
		return nil, errors.New("awsbroker: sink: a client is required")
	}
	s, err := newSink(opts, mostBytes)
	if err != nil {
		return nil, err
	}
	q := newQueues(client, s.opts.Prefix, s.opts.Account, s.opts.Standard)
	s.to, s.badName, s.mostBatch = q, codeQueueName, mostBytes
	s.info = broker.Info{Name: "sqs", Takes: "queue", TopicProblem: func(name string) error { return q.problem(q.withSuffix(name)) }, Advise: q.advise, Keeps: q.keeps}
	return s, nil
}

// NewTopicSink returns a sink on a client of SNS, which stays the caller's. The client's
// retries are not used. It does no I/O. opts must name an account. Close ends the sink's
// calls.
func NewTopicSink(client *sns.Client, opts *SinkOptions) (*Sink, error) {
	if client == nil {
		return nil, errors.New("awsbroker: sink: a client is required")
	}
	s, err := newSink(opts, mostPublished)
	if err != nil {
		return nil, err
	}
	if !accountShape.MatchString(s.opts.Account) {
		return nil, fmt.Errorf("awsbroker: sink: SNS needs the topics' account, 12 digits (got %q): add account=ID", s.opts.Account)
	}
	t := newTopics(client, s.opts.Prefix, s.opts.Account, s.opts.Standard)
	s.to, s.badName, s.mostBatch, s.fansOut = t, codeTopicName, s.opts.MaxMessageBytes, true
	s.info = broker.Info{Name: "sns", Takes: "topic", TopicProblem: func(name string) error { return t.problem(t.withSuffix(name)) }, Advise: t.advise}
	return s, nil
}

func newSink(opts *SinkOptions, size int) (*Sink, error) {
	if opts == nil {
		opts = &SinkOptions{}
	}
	o := *opts
	switch {
	case o.Window < 0 || o.MaxMessageBytes < 0 || o.Timeout < 0:
		return nil, errors.New("awsbroker: sink: no option may be negative")
	case o.MaxMessageBytes > mostBytes:
		return nil, fmt.Errorf("awsbroker: sink: MaxMessageBytes must be at most %d, the service's limit (got %d)", mostBytes, o.MaxMessageBytes)
	}
	o.Window = cmp.Or(o.Window, 32)
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, size)
	s := &Sink{opts: o, slots: make(chan struct{}, o.Window)}
	s.life, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	return s, nil
}

// Close ends the calls that are under way, with errors, and idle connections.
func (s *Sink) Close() {
	s.end()
	s.drop()
}

// drop closes idle connections that are the sink's own.
func (s *Sink) drop() {
	if s.idle != nil {
		s.idle()
	}
}

// Info implements broker.Sink.
func (s *Sink) Info() broker.Info {
	info := s.info
	info.MaxMessageBytes, info.Codec = s.opts.MaxMessageBytes, wireCodec()
	info.Ping, info.Probe, info.Preview = s.Ping, s.Probe, s.Preview
	if !s.opts.Standard {
		info.DedupWindow = dedupFor
	}
	return info
}

// delivery is one Deliver call.
type delivery struct {
	s       *Sink
	pipe    string
	begin   context.Context // no request is begun when it is over
	msgs    []postrider.Message
	errs    []error
	next    keychain.Chain
	ready   []int // may be sent: everything before them in their keys is acknowledged
	flying  int   // batches
	answers chan batch
	encoded envelope.Wire
	kept    *piece // encoded for an earlier batch, which had no room for it
}

// piece is one message of a batch.
type piece struct {
	i     int
	entry *entry
	err   error
}

// batch is one request.
type batch struct {
	queue  string
	pieces []piece
	bytes  int
}

// Deliver implements broker.Sink.
func (s *Sink) Deliver(ctx context.Context, b broker.Batch) []error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	begin, cancel := keychain.Beginning(ctx)
	defer cancel()
	d := &delivery{s: s, pipe: b.Pipe, begin: begin, msgs: b.Messages, answers: make(chan batch, s.opts.Window)}
	d.next, d.ready = keychain.Of(b.Messages)
	for d.unsent() || d.flying > 0 {
		switch err := s.ended(ctx); {
		case err != nil:
			d.abandon(err)
		case begin.Err() != nil:
			d.abandon(keychain.Late())
		default:
			d.send(ctx)
		}
		if d.flying > 0 {
			d.take(<-d.answers)
		}
	}
	return d.errs
}

func (d *delivery) unsent() bool { return len(d.ready) > 0 || d.kept != nil }

func (s *Sink) ended(ctx context.Context) error {
	if s.life.Err() != nil {
		return broker.Outage(errClosed, "", "")
	}
	return ctx.Err()
}

// send begins as many requests as there is room for. It waits for room only when
// the call has no request under way.
func (d *delivery) send(ctx context.Context) {
	for d.unsent() {
		if d.flying > 0 {
			select {
			case d.s.slots <- struct{}{}:
			default:
				return
			}
		} else {
			select {
			case d.s.slots <- struct{}{}:
			case <-d.begin.Done():
				return
			}
		}
		if d.begin.Err() != nil {
			<-d.s.slots
			return
		}
		b := d.pack()
		if len(b.pieces) == 0 {
			<-d.s.slots
			return
		}
		d.flying++
		go func() {
			d.s.post(ctx, &b)
			<-d.s.slots
			d.answers <- b
		}()
	}
}

// pack takes ready messages of one queue, as many as a request may have.
func (d *delivery) pack() (b batch) {
	var others []int
	for len(d.ready) > 0 || d.kept != nil {
		p := d.kept
		if d.kept = nil; p == nil {
			i := d.ready[0]
			d.ready = d.ready[1:]
			e, _, err := d.s.encode(&d.encoded, d.pipe, &d.msgs[i])
			if err != nil {
				d.fail(i, err)
				continue
			}
			p = &piece{i: i, entry: e}
		}
		if len(b.pieces) > 0 && b.queue != p.entry.queue {
			others = append(others, p.i)
			if len(others) >= mostEntries { // not a look at all of them for each request
				break
			}
			continue
		}
		if b.bytes+p.entry.bytes > d.s.mostBatch {
			d.kept = p
			break
		}
		b.queue, b.bytes = p.entry.queue, b.bytes+p.entry.bytes
		if b.pieces = append(b.pieces, *p); len(b.pieces) == mostEntries {
			break
		}
	}
	d.ready = append(others, d.ready...)
	return b
}

// take notes the answers of a request: the message behind an acknowledged one in its
// key is ready.
func (d *delivery) take(b batch) {
	d.flying--
	for _, p := range b.pieces {
		if p.err != nil {
			d.fail(p.i, p.err)
		} else if n := d.next.Next(p.i); n > 0 {
			d.ready = append(d.ready, n)
		}
	}
}

// fail notes err for message i and bars the rest of its key.
func (d *delivery) fail(i int, err error) {
	if d.errs == nil {
		d.errs = make([]error, len(d.msgs))
	}
	d.errs[i] = err
	d.next.Bar(i, d.errs, err)
}

// abandon fails the messages that were not sent.
func (d *delivery) abandon(err error) {
	if d.kept != nil {
		d.fail(d.kept.i, err)
		d.kept = nil
	}
	for _, i := range d.ready {
		d.fail(i, err)
	}
	d.ready = nil
}

// post sends a batch and notes the answer of each piece. A request that the service
// refuses as a whole for its content is repeated message by message: one of them
// is the reason.
func (s *Sink) post(ctx context.Context, b *batch) {
	err := s.request(ctx, b)
	if err == nil {
		return
	}
	if ownFault(err) && len(b.pieces) > 1 {
		for i := range b.pieces {
			one := batch{queue: b.queue, pieces: b.pieces[i : i+1]}
			if err := s.request(ctx, &one); err != nil {
				b.pieces[i].err = err
			}
		}
		return
	}
	for i := range b.pieces {
		b.pieces[i].err = err
	}
}

// request sends one request. Without an error each piece has its answer.
func (s *Sink) request(ctx context.Context, b *batch) error {
	call, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	err := s.to.send(call, b)
	if err != nil && broker.Classify(err).Class == broker.ClassUnknown { // other idle connections may be dead too
		s.drop()
	}
	return err
}

// unanswered makes all pieces unknown, until their answers are read: one that the
// answer to a request does not name stays so.
func (b *batch) unanswered() {
	for n := range b.pieces {
		b.pieces[n].err = broker.Unknown(errNoAnswer, "", b.queue)
	}
}

// answered notes the answer to the entry of that id.
func (b *batch) answered(id *string, err error) {
	if p := b.piece(id); p != nil {
		p.err = err
	}
}

func (b *batch) piece(id *string) *piece {
	text := aws.ToString(id)
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n >= len(b.pieces) || text != strconv.Itoa(n) { // such as 01: the request had no such id
		return nil
	}
	return &b.pieces[n]
}
