package brokers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Kafka describes a Kafka broker. opts are the clients' options, addresses included.
func Kafka(opts ...kgo.Opt) (*Broker, error) {
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	k := &kafka{opts: opts, client: client, admin: kadm.NewClient(client), partitions: make(map[string]int)}
	return &Broker{
		Name: "kafka", Make: k.make, Remove: k.remove, Publish: k.publish,
		Count: func(ctx context.Context, topic string) (int, error) {
			_, n, err := k.ends(ctx, topic)
			return n, err
		},
		Read: k.read, Follow: k.follow, Lag: k.lag, Committed: k.committed,
		Refuse: func(ctx context.Context, topic string) (func(context.Context) error, error) {
			least := "1"
			undo := func(ctx context.Context) error {
				return k.alter(ctx, topic, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: maxBytes})
			}
			return undo, k.alter(ctx, topic, kadm.AlterConfig{Op: kadm.SetConfig, Name: maxBytes, Value: &least})
		},
		Close: client.Close,
	}, nil
}

const maxBytes = "max.message.bytes"

type kafka struct {
	opts   []kgo.Opt
	client *kgo.Client
	admin  *kadm.Client

	mu         sync.Mutex
	partitions map[string]int // of the topics made here
}

func (k *kafka) make(ctx context.Context, t Topic) error {
	configs := map[string]*string{}
	if t.MaxBytes > 0 {
		limit := strconv.Itoa(t.MaxBytes)
		configs[maxBytes] = &limit
	}
	n := max(t.Partitions, 1)
	made, err := k.admin.CreateTopic(ctx, int32(n), -1, configs, t.Name)
	if err = errors.Join(err, made.Err); err != nil {
		return fmt.Errorf("make the topic %s: %w", t.Name, err)
	}
	k.mu.Lock()
	k.partitions[t.Name] = n
	k.mu.Unlock()
	return k.until(ctx, "make", t.Name, func() error { _, _, err := k.ends(ctx, t.Name); return err })
}

// until waits for an effect that the broker completes after its reply.
func (k *kafka) until(ctx context.Context, act, topic string, done func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s the topic %s: %w", act, topic, errors.Join(ctx.Err(), err))
		}
	}
}

func (k *kafka) alter(ctx context.Context, topic string, config kadm.AlterConfig) error {
	changed, err := k.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{config}, topic)
	for _, c := range changed {
		err = errors.Join(err, c.Err)
	}
	return err
}

func (k *kafka) remove(ctx context.Context, topic string) error {
	if _, err := k.admin.DeleteTopic(ctx, topic); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("remove the topic %s: %w", topic, err)
	}
	k.client.PurgeTopicsFromClient(topic) // the client caches the topic's identity
	return k.until(ctx, "remove", topic, func() error {
		topics, err := k.admin.ListTopics(ctx, topic)
		if err == nil && topics.Has(topic) {
			err = errors.New("the broker still lists it")
		}
		return err
	})
}

// ends returns the end of each partition, and their sum.
func (k *kafka) ends(ctx context.Context, topic string) (at map[int32]int64, sum int, err error) {
	listed, err := k.admin.ListEndOffsets(ctx, topic)
	if err = errors.Join(err, listed.Error()); err != nil {
		return nil, 0, err
	}
	at = make(map[int32]int64)
	listed.Each(func(o kadm.ListedOffset) { at[o.Partition] = o.Offset; sum += int(o.Offset) })
	k.mu.Lock()
	want := k.partitions[topic]
	k.mu.Unlock()
	if len(at) < max(want, 1) {
		return nil, 0, fmt.Errorf("%d of %d partitions of %s replied", len(at), max(want, 1), topic)
	}
	return at, sum, nil
}

// reader is a client that reads the topic from its beginning.
func (k *kafka) reader(topic string) (*kgo.Client, error) {
	opts := []kgo.Opt{kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(time.Second)}
	return kgo.NewClient(append(opts, k.opts...)...)
}

// read reads up to the partitions' present ends. Without transactions offsets have no
// gaps.
func (k *kafka) read(ctx context.Context, topic string, each func(Record)) error {
	end, left, err := k.ends(ctx, topic)
	if err != nil {
		return err
	}
	client, err := k.reader(topic)
	if err != nil {
		return err
	}
	defer client.Close()
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("%d records of %s did not arrive: %w", left, topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset < end[r.Partition] {
				left--
				each(Record{Payload: r.Value, Time: r.Timestamp})
			}
		})
	}
	return nil
}

func (k *kafka) follow(ctx context.Context, topic string, n int, each func(Record)) error {
	client, err := k.reader(topic)
	if err != nil {
		return err
	}
	defer client.Close()
	for got := 0; got < n; {
		wait, cancel := context.WithTimeoutCause(ctx, silence, silent(got, n))
		fetches := client.PollFetches(wait)
		err := fetches.Err()
		if err != nil && wait.Err() != nil {
			err = context.Cause(wait)
		}
		cancel()
		if err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) { got++; each(Record{Payload: r.Value, Time: r.Timestamp}) })
	}
	return nil
}

func (k *kafka) publish(ctx context.Context, topic string, page []Message) error {
	records := make([]*kgo.Record, len(page))
	for i, m := range page {
		records[i] = &kgo.Record{Topic: topic, Key: []byte(m.Key), Value: m.Payload}
		for _, h := range m.Headers {
			records[i].Headers = append(records[i].Headers, kgo.RecordHeader{Key: h[0], Value: []byte(h[1])})
		}
	}
	return k.client.ProduceSync(ctx, records...).FirstErr()
}

// committed returns no partitions while the broker prepares for its first group.
func (k *kafka) committed(ctx context.Context, topic, group string) (map[int32]int64, error) {
	fetched, err := k.admin.FetchOffsets(ctx, group)
	if kerr.IsRetriable(err) {
		return nil, nil
	}
	if err = errors.Join(err, fetched.Error()); err != nil {
		return nil, err
	}
	at := make(map[int32]int64)
	fetched.Each(func(o kadm.OffsetResponse) {
		if o.Topic == topic {
			at[o.Partition] = max(o.At, 0)
		}
	})
	return at, nil
}

func (k *kafka) lag(ctx context.Context, topic, group string) (int, error) {
	_, left, err := k.ends(ctx, topic)
	if err != nil {
		return 0, err
	}
	committed, err := k.committed(ctx, topic, group)
	for _, at := range committed {
		left -= int(at)
	}
	return left, err
}
