package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// SinkOptions of NewSink. The zero value is what most want.
type SinkOptions struct {
	// TopicPrefix is put before every message's topic.
	TopicPrefix string
	// Timeout bounds one request and all tries of one batch; 10 s if zero.
	// After it the messages are answered as unknown, or as an outage when
	// nothing was sent.
	Timeout time.Duration
}

// Sink publishes to Kafka. It is safe for concurrent use and works best when
// many calls run at once. It has no goroutine while nothing is being sent, and
// it does not close the client.
type Sink struct {
	client     *kgo.Client
	prefix     string
	timeout    time.Duration
	maxBatch   int
	compressor kgo.Compressor
	producer   atomic.Pointer[producer]
	encoders   sync.Pool

	mu      sync.Mutex
	topics  map[string]*topic
	leaders map[int32]*leader

	producing sync.Mutex // one request for a producer id at a time
}

// producer is an idempotent producer's identity. Partitions count by themselves.
type producer struct {
	id    int64
	epoch int16
}

// NewSink returns a sink that uses client, which stays the caller's. It refuses
// a client whose options would lose or reorder messages or mean something else
// than what the sink does. It does no I/O. opts may be nil.
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
		client: client, prefix: opts.TopicPrefix, timeout: opts.Timeout, maxBatch: 1_000_012,
		topics: make(map[string]*topic), leaders: make(map[int32]*leader),
	}
	if s.timeout <= 0 {
		s.timeout = 10 * time.Second
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	s.encoders.New = func() any { return &encoder{table: table} }
	if n, ok := client.OptValue(kgo.ProducerBatchMaxBytes).(int32); ok && n > 0 {
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

// checkClient reads back the options that decide about loss and order.
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
		return errors.New("the client must not have a TransactionalID: the sink does not commit transactions")
	}
	if p, ok := client.OptValue(kgo.RecordPartitioner).(kgo.Partitioner); ok && p != nil && !javaLike(p) {
		return errors.New("the client's RecordPartitioner maps keys unlike the Java client: the sink would put them elsewhere than the client's own records")
	}
	return nil
}

// javaLike tries a partitioner on some keys.
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
	return broker.Info{Name: "kafka", MaxMessageBytes: s.maxBatch - batchHeaderLen}
}

// Deliver implements broker.Sink.
func (s *Sink) Deliver(ctx context.Context, msgs []postrider.Message) []error {
	if len(msgs) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return all(len(msgs), broker.Unknown(err, "", ""))
	}
	if _, err := s.ensureProducer(ctx); err != nil {
		return all(len(msgs), err)
	}
	c := newCall(msgs)
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

// assign gives every message its partition, and answers those whose topic
// cannot be used.
func (s *Sink) assign(ctx context.Context, c *call) []*segment {
	var (
		segs    []*segment
		at      = make(map[*partition]*segment, 16)
		byTopic = make(map[string]*target, 1)
		t       *target
		last    string
	)
	for i := range c.msgs {
		m := &c.msgs[i]
		if t == nil || m.Topic != last {
			if t = byTopic[m.Topic]; t == nil {
				t = s.target(ctx, m.Topic)
				byTopic[m.Topic] = t
			}
			last = m.Topic
		}
		if t.err != nil {
			c.fail(int32(i), t.err)
			c.resolved(1)
			continue
		}
		num := t.keyless
		if m.Key != "" {
			num = partitionOf(m.Key, len(t.parts))
		}
		p := t.parts[num]
		seg := at[p]
		if seg == nil {
			seg = &segment{call: c, p: p, idx: make([]int32, 0, len(c.msgs)/len(t.parts)+8)}
			at[p] = seg
			segs = append(segs, seg)
		}
		seg.idx = append(seg.idx, int32(i))
	}
	return segs
}

// target is where one call's messages of one topic go.
type target struct {
	parts   []*partition
	keyless int // the one partition of this call's messages without a key
	err     error
}

func (s *Sink) target(ctx context.Context, name string) *target {
	name = s.prefix + name
	if !validTopic(name) {
		return &target{err: broker.Rejected(errTopicName, kerr.InvalidTopicException.Message, name)}
	}
	t, err := s.topicOf(ctx, name)
	if err != nil {
		return &target{err: discoveryError(ctx, err, name)}
	}
	parts := *t.parts.Load()
	return &target{parts: parts, keyless: int(t.next.Add(1) % uint32(len(parts)))}
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

// forget drops what is known of a topic that is gone.
func (s *Sink) forget(t *topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics[t.name] == t {
		delete(s.topics, t.name)
	}
}

// ensureProducer returns the producer identity for partitions that have none,
// asking the broker for one where needed.
func (s *Sink) ensureProducer(ctx context.Context) (*producer, error) {
	if p := s.producer.Load(); p != nil {
		return p, nil
	}
	s.producing.Lock()
	defer s.producing.Unlock()
	if p := s.producer.Load(); p != nil {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionTimeoutMillis = int32(time.Minute.Milliseconds())
	resp, err := req.RequestWith(ctx, s.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, broker.Outage(fmt.Errorf("asking for a producer id: %w", err), code(err), "")
	}
	p := &producer{id: resp.ProducerID, epoch: resp.ProducerEpoch}
	s.producer.Store(p)
	return p, nil
}
