package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// SinkOptions configures [Open] and [NewSink]. The zero value suits most applications.
type SinkOptions struct {
	// Prefix is put before every topic, "prod." for example.
	Prefix string
	// Route sets destination, record key, format and further headers of each
	// message. nil: the message's topic and key, plain.
	Route envelope.Router
	// Timeout bounds one request and all tries of one batch; 10 s if zero.
	// After it the messages are unknown, or an outage if
	// nothing was sent.
	Timeout time.Duration
	// TransactionalID, if not empty, makes each Deliver call one transaction:
	// read_committed consumers see all messages of a call or none, except the
	// rejected ones. No other process may use the id, and it must stay the same
	// across restarts: a new process fences the old one. The client
	// needs [TransactionOptions]. Calls run one after another, which is slower.
	TransactionalID string
}

// Sink publishes to Kafka. It is safe for concurrent use and works best when
// many calls run at once. It has no goroutine while nothing is being sent.
type Sink struct {
	client     *kgo.Client
	close      func() // closes the client that Open made; nil: the caller owns the client
	prefix     string
	router     envelope.Router
	timeout    time.Duration
	maxBatch   int // bytes; noLimit: the topics' own limits alone
	compressor kgo.Compressor
	transactor *transactor // nil: no transactions
	encoders   sync.Pool   // of *encoder
	batches    sync.Pool   // of *batch
	routes     sync.Pool   // of *[]envelope.Route

	mu      sync.Mutex
	topics  map[string]*topic
	leaders map[int32]*leader
}

// NewSink returns a sink that uses client, which the caller closes. It refuses
// a client whose options would lose or reorder messages, or contradict
// the sink's own. It does no I/O. opts may be nil.
func NewSink(client *kgo.Client, opts *SinkOptions) (*Sink, error) {
	if opts == nil {
		opts = &SinkOptions{}
	}
	if client == nil {
		return nil, errors.New("kafkabroker: sink: client is nil")
	}
	if err := checkClient(client); err != nil {
		return nil, fmt.Errorf("kafkabroker: sink: %w", err)
	}
	s := &Sink{
		client: client, prefix: opts.Prefix, router: opts.Route, timeout: opts.Timeout, maxBatch: noLimit,
		topics: make(map[string]*topic), leaders: make(map[int32]*leader),
	}
	if s.timeout <= 0 {
		s.timeout = 10 * time.Second
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	s.batches.New = func() any { return new(batch) }
	s.encoders.New = func() any { return &encoder{table: table} }
	if opts.TransactionalID != "" {
		if err := checkVersions(client); err != nil {
			return nil, fmt.Errorf("kafkabroker: sink: %w", err)
		}
		s.transactor = newTransactor(s, opts.TransactionalID)
	}
	if n, ok := client.OptValue(kgo.ProducerBatchMaxBytes).(int32); ok && n > 0 && n != clientDefault {
		s.maxBatch = int(n)
	}
	if c, ok := client.OptValue(kgo.WithCompressor).(kgo.Compressor); ok && c != nil {
		s.compressor = c
	} else if codecs, ok := client.OptValue(kgo.ProducerBatchCompression).([]kgo.CompressionCodec); ok {
		c, err := kgo.DefaultCompressor(codecs...)
		if err != nil {
			return nil, fmt.Errorf("kafkabroker: sink: compression: %w", err)
		}
		s.compressor = c
	}
	return s, nil
}

// Close closes the client that [Open] made: calls under way fail. For a sink of
// [NewSink] it does nothing, and the client stays open.
func (s *Sink) Close() {
	if s.close != nil {
		s.close()
	}
}

const (
	// clientDefault is the client's default ProducerBatchMaxBytes. It is below a
	// broker's default limit, and counts as not set.
	clientDefault = 1_000_012
	// noLimit is above the size of any message and below a broker's limit for one request.
	noLimit = 64 << 20
)

// checkClient checks the client's options that loss and order depend on.
func checkClient(client *kgo.Client) error {
	if client.OptValue(kgo.RequiredAcks) != kgo.AllISRAcks() {
		return errors.New("the client's RequiredAcks must be AllISRAcks: with less an acknowledged message can be lost")
	}
	if off, _ := client.OptValue(kgo.DisableIdempotentWrite).(bool); off {
		return errors.New("the client must not use DisableIdempotentWrite: a retry could duplicate and reorder")
	}
	if on, _ := client.OptValue(kgo.AllowIdempotentProduceCancellation).(bool); on {
		return errors.New("the client must not use AllowIdempotentProduceCancellation: a cancelled record would let later ones pass")
	}
	if vs := client.OptValues(kgo.TransactionalID); len(vs) > 0 && vs[0] != "" {
		return errors.New("the client must not have a TransactionalID: give it to the sink, which makes its own transactions")
	}
	if p, ok := client.OptValue(kgo.RecordPartitioner).(kgo.Partitioner); ok && p != nil && !javaLike(p) {
		return errors.New("the client's RecordPartitioner differs from the Java client's: the sink and the client would send a key to different partitions")
	}
	return nil
}

// javaLike reports whether a partitioner agrees with the Java client's on some keys.
func javaLike(p kgo.Partitioner) bool {
	const partitions = 97
	tp := p.ForTopic("postrider")
	for i := range 16 {
		key := "key-" + strconv.Itoa(i)
		r := &kgo.Record{Topic: "postrider", Key: []byte(key)}
		if !tp.RequiresConsistency(r) {
			return false
		}
		var got int
		if backup, ok := tp.(kgo.TopicBackupPartitioner); ok { // its Partition must not be called
			got = backup.PartitionByBackup(r, partitions, nil)
		} else {
			got = tp.Partition(r, partitions)
		}
		if got != partitionOf(key, partitions) {
			return false
		}
	}
	return true
}

// Info implements broker.Sink.
func (s *Sink) Info() broker.Info {
	limit := 0
	if s.maxBatch < noLimit {
		limit = s.maxBatch - batchHeaderLen
	}
	return broker.Info{
		Name: "kafka", Takes: "topic", MaxMessageBytes: limit,
		MaxTopicBytes: maxTopic, TopicProblem: topicProblem, Codec: wireCodec(), Fencing: s.transactor != nil,
		Ping: s.Ping, Probe: s.Probe, Advise: s.Advise, Keeps: s.Keeps, Preview: s.Preview,
	}
}

// Preview is [broker.Info].Preview. A topic's own limit is known after the first message
// to it, and does not apply to compressed batches.
func (s *Sink) Preview(_ string, m *postrider.Message) (broker.Preview, error) {
	r, err := s.router.Of(m)
	if err != nil {
		return broker.Preview{}, broker.Unsendable(err, "")
	}
	p := broker.Preview{Route: r, Destination: s.prefix + r.Topic, Key: r.Key}
	whose := clientLimit()
	if s.maxBatch < noLimit {
		p.Limit = s.maxBatch
	}
	if limit := s.knownLimit(p.Destination); limit > 0 && s.compressor == nil && (p.Limit == 0 || limit < p.Limit) {
		p.Limit, whose = limit, topicLimit()
	}
	if err := topicProblem(p.Destination); err != nil {
		return p, broker.Rejected(err, kerr.InvalidTopicException.Message, p.Destination)
	}
	var e encoder
	buf, err := e.add(e.begin(nil), m, &r, p.Destination, 0)
	p.Headers, p.Payload, p.Bytes = e.wire.Headers, slices.Concat(e.wire.Prefix, e.wire.Payload), len(buf)
	if err == nil && p.Limit > 0 && p.Bytes > p.Limit {
		err = broker.Rejected(tooLarge(errTooLarge, p.Bytes, p.Limit, whose, p.Destination), kerr.MessageTooLarge.Message, p.Destination)
	}
	return p, err
}

// knownLimit returns a topic's max.message.bytes, 0 if it is unknown.
func (s *Sink) knownLimit(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[name]; t != nil {
		return int(t.limit.Load())
	}
	return 0
}

// Deliver implements broker.Sink.
func (s *Sink) Deliver(ctx context.Context, batch broker.Batch) []error {
	if len(batch.Messages) == 0 {
		return nil
	}
	c := newCall(batch.Messages, nil)
	var bad []error
	if s.router != nil {
		routes := new([]envelope.Route)
		if s.transactor == nil { // its work may end after the call
			if used, ok := s.routes.Get().(*[]envelope.Route); ok {
				routes = used
			}
			defer s.giveBack(routes)
		}
		bad = c.routed(s.router, routes)
	}
	if s.transactor != nil {
		return s.transactor.deliver(ctx, c, bad)
	}
	if steps := stepsOf(c); steps != nil || bad != nil {
		return s.inSteps(ctx, c, steps, bad)
	}
	return s.deliver(ctx, c)
}

// giveBack keeps the memory of a call's routes for the next one: like the messages, partitions touch
// them only until the call returns.
func (s *Sink) giveBack(routes *[]envelope.Route) {
	clear(*routes) // their texts are parts of whole reads
	s.routes.Put(routes)
}

// deliver sends messages whose keys have one partition each.
func (s *Sink) deliver(ctx context.Context, c *call) []error {
	msgs := c.msgs
	if err := ctx.Err(); err != nil {
		return all(len(msgs), broker.Unknown(err, "", ""))
	}
	segs := s.assign(ctx, c)
	s.enqueue(segs)
	c.resolved(1)
	select {
	case <-c.done:
	case <-ctx.Done():
		for _, seg := range segs {
			if seg.p.abandon(seg, ctx.Err()) {
				relist(seg.p)
			}
		}
	}
	return c.result()
}

func all(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// fewSegments is the number of segments up to which a linear search beats a map.
const fewSegments = 16

// assign gives every message its partition, and resolves messages whose topic
// cannot be used.
func (s *Sink) assign(ctx context.Context, c *call) []*segment {
	var (
		segs    []*segment
		at      map[*partition]*segment // from fewSegments on
		targets []*target
		t       *target
	)
	for i := range c.msgs {
		topic, key := c.place(i)
		if t == nil || topic != t.name {
			n := slices.IndexFunc(targets, func(t *target) bool { return t.name == topic })
			if n < 0 {
				n = len(targets)
				next := s.target(ctx, topic)
				if next.err == nil {
					next.err = next.parts[0].topic.ensureProducer(ctx)
				}
				targets = append(targets, next)
			}
			t = targets[n]
		}
		if t.err != nil {
			c.fail(int32(i), t.err)
			c.resolved(1)
			continue
		}
		num := t.keyless
		if key != "" {
			num = partitionOf(key, len(t.parts))
		}
		p := t.parts[num]
		seg := at[p]
		if at == nil {
			if n := slices.IndexFunc(segs, func(s *segment) bool { return s.p == p }); n >= 0 {
				seg = segs[n]
			}
		}
		if seg == nil {
			seg = &segment{call: c, p: p, idx: make([]int32, 0, min(len(c.msgs)-i, len(c.msgs)/len(t.parts)+8))}
			segs = append(segs, seg)
			at = index(at, segs)
		}
		seg.idx = append(seg.idx, int32(i))
	}
	return segs
}

// index adds the last segment to at, once there are more than a few.
func index(at map[*partition]*segment, segs []*segment) map[*partition]*segment {
	if at == nil && len(segs) > fewSegments {
		at = make(map[*partition]*segment, 4*fewSegments)
		for _, seg := range segs {
			at[seg.p] = seg
		}
	} else if at != nil {
		seg := segs[len(segs)-1]
		at[seg.p] = seg
	}
	return at
}

// target has the partitions for one call's messages of one topic.
type target struct {
	name    string // the topic of their routes
	parts   []*partition
	keyless int // the one partition of this call's messages without a key
	err     error
}

func (s *Sink) target(ctx context.Context, topic string) *target {
	name := s.prefix + topic
	if err := topicProblem(name); err != nil {
		return &target{name: topic, err: broker.Rejected(err, kerr.InvalidTopicException.Message, name)}
	}
	t, v, err := s.topicOf(ctx, name)
	if err != nil {
		return &target{name: topic, err: discoveryError(ctx, err, name)}
	}
	return &target{name: topic, parts: v.parts, keyless: int(t.next.Add(1) % uint32(len(v.parts)))}
}

// enqueue puts the segments into their queues before any of them is sent.
func (s *Sink) enqueue(segs []*segment) {
	var kick []*leader
	for _, seg := range segs {
		if !seg.p.push(seg) {
			continue
		}
		l := seg.p.leader.Load()
		l.add(seg.p)
		if len(kick) == 0 || kick[len(kick)-1] != l {
			kick = append(kick, l)
		}
	}
	for _, l := range kick {
		l.kick()
	}
}

// forget drops the state of a topic that the broker denies. It may be wrong: its metadata may
// be old, and messages may wait in the partitions of the old state while others come to those
// of the next one.
func (s *Sink) forget(t *topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics[t.name] == t {
		delete(s.topics, t.name)
	}
}
