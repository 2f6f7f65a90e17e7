package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/broker"
)

// topicAge is the age at which the view of a topic is refreshed. Every instance
// notices added partitions within it; other clients refresh every five minutes
// too.
const topicAge = 5 * time.Minute

// lowAge replaces topicAge while a topic accepts only smaller batches than the sink
// makes: a raised limit is noticed within it.
const lowAge = 10 * time.Second

// topic is the sink's state of a topic. A topic that was deleted and created again
// is another topic.
type topic struct {
	sink     *Sink
	name     string
	maxBatch atomic.Int64 // bytes, as far as known; the broker may still refuse a batch
	limit    atomic.Int64 // the topic's max.message.bytes; 0: not readable
	view     atomic.Pointer[view]
	next     atomic.Uint32 // partition of the next call's messages without a key
	looking  lookup[*view]

	producer  atomic.Pointer[producer] // of partitions that have none; nil: to be requested
	producing lookup[*producer]
}

// producer is the identity of an idempotent producer. Each partition has a sequence of its
// own and starts it only once under one identity. Identities are not shared between topics:
// a topic that was forgotten and found again is two topics here, and one at the broker.
type producer struct {
	id    int64
	epoch int16
}

// view is a topic at one moment.
type view struct {
	id     [16]byte // zero before Kafka 2.8
	parts  []*partition
	at     time.Time
	limits time.Time // when maxBatch was read
}

// errOtherTopic is the error of messages in flight to a deleted topic.
var errOtherTopic = errors.New("the topic was deleted and created again")

// topicOf returns a topic that exists, asking the broker the first time.
func (s *Sink) topicOf(ctx context.Context, name string) (*topic, *view, error) {
	s.mu.Lock()
	t := s.topics[name]
	if t == nil {
		t = &topic{sink: s, name: name}
		t.maxBatch.Store(int64(s.maxBatch))
		s.topics[name] = t
	}
	s.mu.Unlock()
	if v := t.view.Load(); v != nil {
		if time.Since(v.at) > t.age() {
			again := *v // one caller refreshes, the others use the old view
			again.at = time.Now()
			if t.view.CompareAndSwap(v, &again) {
				go t.renew()
			}
		}
		return t, v, nil
	}
	v, err := t.refresh(ctx)
	if err != nil {
		s.forget(t)
		return nil, nil, err
	}
	return t, v, nil
}

// age returns how long a view of the topic is valid.
func (t *topic) age() time.Duration {
	if t.maxBatch.Load() < softBatchBytes {
		return lowAge
	}
	return topicAge
}

// renew refreshes the view in the background. If that fails, a later batch reports it.
func (t *topic) renew() {
	if _, err := t.refresh(t.sink.client.Context()); errors.Is(err, errOtherTopic) {
		t.sink.forget(t)
	}
}

// refresh looks the partitions' leaders up again.
func (t *topic) refresh(ctx context.Context) (*view, error) {
	return t.looking.ask(ctx, t.look)
}

// look reads partitions and leaders. After partitions were added it uses the larger
// number: from then on some keys go to other partitions, as with every producer.
func (t *topic) look() (*view, error) {
	ctx, cancel := context.WithTimeout(t.sink.client.Context(), t.sink.timeout)
	defer cancel()
	rt, err := t.sink.describe(ctx, t.name)
	if err != nil {
		return nil, err
	}
	v := &view{id: rt.TopicID, parts: make([]*partition, len(rt.Partitions)), at: time.Now()}
	old := t.view.Load()
	if old != nil {
		if old.id != v.id || len(old.parts) > len(v.parts) {
			return nil, errOtherTopic
		}
		copy(v.parts, old.parts)
		v.limits = old.limits
	}
	for i := range rt.Partitions {
		rp := &rt.Partitions[i]
		if int(rp.Partition) >= len(v.parts) || rp.Partition < 0 {
			return nil, fmt.Errorf("partition %d of %d", rp.Partition, len(rt.Partitions))
		}
		p := v.parts[rp.Partition]
		if p == nil {
			p = &partition{topic: t, num: rp.Partition}
			v.parts[rp.Partition] = p
		}
		p.leader.Store(t.sink.leaderOf(rp.Leader))
	}
	if time.Since(v.limits) >= lowAge {
		t.readLimit(ctx)
		v.limits = v.at
	}
	t.view.Store(v)
	return v, nil
}

func (s *Sink) describe(ctx context.Context, name string) (*kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	mt := kmsg.NewMetadataRequestTopic()
	mt.Topic = kmsg.StringPtr(name)
	req.Topics = append(req.Topics, mt)
	resp, err := req.RequestWith(ctx, s.client)
	if err != nil {
		return nil, fmt.Errorf("asking for the topic: %w", err)
	}
	if len(resp.Topics) != 1 {
		return nil, errNoTopic
	}
	rt := &resp.Topics[0]
	switch err := kerr.ErrorForCode(rt.ErrorCode); {
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.InvalidTopicException):
		return nil, fmt.Errorf("%w: %w", errNoTopic, err)
	case err != nil:
		return nil, fmt.Errorf("asking for the topic: %w", err)
	}
	if len(rt.Partitions) == 0 {
		return nil, errNoPartition
	}
	return rt, nil
}

// readLimit sets maxBatch to the topic's own limit if this user may read it. Otherwise
// the broker refuses larger batches and the sink splits them.
func (t *topic) readLimit(ctx context.Context) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	res := kmsg.NewDescribeConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, t.name
	res.ConfigNames = []string{"max.message.bytes"}
	req.Resources = append(req.Resources, res)
	resp, err := req.RequestWith(ctx, t.sink.client)
	if err != nil {
		return
	}
	for _, r := range resp.Resources {
		for _, c := range r.Configs {
			if c.Name != "max.message.bytes" || c.Value == nil {
				continue
			}
			if n, err := strconv.ParseInt(*c.Value, 10, 64); err == nil && n > 0 {
				t.limit.Store(n)
				t.maxBatch.Store(min(n, int64(t.sink.maxBatch)))
			}
		}
	}
}

// ensureProducer requests a producer identity for partitions that have none, unless the
// topic has one.
func (t *topic) ensureProducer(ctx context.Context) error {
	if t.producer.Load() != nil {
		return nil
	}
	if _, err := t.producing.ask(ctx, t.newProducer); err != nil {
		return broker.Outage(fmt.Errorf("request a producer id: %w", remedy(err, "")), code(err), "")
	}
	return nil
}

func (t *topic) newProducer() (*producer, error) {
	if p := t.producer.Load(); p != nil {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(t.sink.client.Context(), t.sink.timeout)
	defer cancel()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionTimeoutMillis = int32(time.Minute.Milliseconds())
	resp, err := req.RequestWith(ctx, t.sink.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, err
	}
	p := &producer{id: resp.ProducerID, epoch: resp.ProducerEpoch}
	t.producer.Store(p)
	return p, nil
}

// maxTopic is the length of the longest name that Kafka allows.
const maxTopic = 249

// topicProblem returns an error if a name breaks Kafka's rules.
func topicProblem(name string) error {
	if !validTopic(name) {
		return errTopicName
	}
	return nil
}

func validTopic(name string) bool {
	if name == "" || len(name) > maxTopic || name == "." || name == ".." {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}
