package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// realBroker is a server that a test may kill.
type realBroker struct {
	name, url     string
	kill, restart func() error
	make          func(t *testing.T, topic string)
	// left is how many messages of the topic the consumer has not acknowledged.
	left func(t *testing.T, topic, consumer string) int
	// committed is where a consumer continues, by partition; nil: each message is
	// acknowledged by itself.
	committed func(t *testing.T, topic, consumer string) map[int32]int64
}

// onRealBrokers starts each broker once for all tests of run, which continue side by
// side: most of their time is waiting.
func onRealBrokers(t *testing.T, run func(t *testing.T, b *realBroker)) {
	t.Helper()
	for name, start := range map[string]func(*testing.T) *realBroker{
		"nats":  func(t *testing.T) *realBroker { t.Helper(); return natsServer(testserver.StartNATS(t)) },
		"kafka": func(t *testing.T) *realBroker { t.Helper(); return kafkaServer(testserver.StartKafka(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, start(t))
		})
	}
}

func natsServer(s *testserver.NATS) *realBroker {
	stream := func(t *testing.T) jetstream.JetStream {
		nc, err := nats.Connect(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		return js
	}
	return &realBroker{
		name: "nats", url: s.URL, kill: s.Kill, restart: s.Restart,
		make: func(t *testing.T, topic string) {
			cfg := jetstream.StreamConfig{Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage}
			if _, err := stream(t).CreateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
		},
		left: func(t *testing.T, topic, consumer string) int {
			c, err := stream(t).Consumer(t.Context(), topic, consumer)
			if err != nil {
				t.Fatal(err)
			}
			info, err := c.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return int(info.NumPending) + info.NumAckPending
		},
	}
}

const partitions = 4

func kafkaServer(k *testserver.Kafka) *realBroker {
	clients := make(map[*testing.T]*kgo.Client)
	client := func(t *testing.T) *kgo.Client {
		if c := clients[t]; c != nil {
			return c
		}
		c, err := kgo.NewClient(kgo.SeedBrokers(k.Addr))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		clients[t] = c
		return c
	}
	return &realBroker{
		name: "kafka", url: "kafka://" + k.Addr, kill: k.Kill, restart: k.Restart,
		make: func(t *testing.T, topic string) { makeTopic(t, client(t), topic) },
		left: func(t *testing.T, topic, group string) int { return lag(t, client(t), topic, group) },
		committed: func(t *testing.T, topic, group string) map[int32]int64 {
			return committed(t, client(t), topic, group)
		},
	}
}

func makeTopic(t *testing.T, c *kgo.Client, topic string) {
	t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 10_000
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = topic, partitions, 1
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(t.Context(), c)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("create topic: %v", err)
	}
}

// lag is how far the group's committed offsets are behind the partitions' ends.
func lag(t *testing.T, c *kgo.Client, topic, group string) (left int) {
	t.Helper()
	ends := kmsg.NewPtrListOffsetsRequest()
	ends.ReplicaID = -1
	et := kmsg.NewListOffsetsRequestTopic()
	et.Topic = topic
	for p := range int32(partitions) {
		ep := kmsg.NewListOffsetsRequestTopicPartition()
		ep.Partition, ep.Timestamp = p, -1 // the end
		et.Partitions = append(et.Partitions, ep)
	}
	ends.Topics = append(ends.Topics, et)
	for _, shard := range c.RequestSharded(t.Context(), ends) {
		if shard.Err != nil {
			t.Fatalf("ask for the ends: %v", shard.Err)
		}
		for _, p := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics[0].Partitions {
			left += int(p.Offset)
		}
	}
	for _, offset := range committed(t, c, topic, group) {
		left -= int(offset)
	}
	return left
}

// committed are the group's offsets, by partition; none while the broker makes
// ready for its first group.
func committed(t *testing.T, c *kgo.Client, topic, group string) map[int32]int64 {
	t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	rg := kmsg.NewOffsetFetchRequestGroup()
	rg.Group = group
	gt := kmsg.NewOffsetFetchRequestGroupTopic()
	rt := kmsg.NewOffsetFetchRequestTopic()
	gt.Topic, rt.Topic = topic, topic
	for p := range int32(partitions) {
		gt.Partitions, rt.Partitions = append(gt.Partitions, p), append(rt.Partitions, p)
	}
	rg.Topics, req.Topics = append(rg.Topics, gt), append(req.Topics, rt)
	req.Group, req.Groups = group, append(req.Groups, rg)
	resp, err := req.RequestWith(t.Context(), c)
	if kerr.IsRetriable(err) {
		return nil
	}
	if err != nil {
		t.Fatalf("ask for the committed offsets: %v", err)
	}
	out := make(map[int32]int64)
	for _, g := range resp.Groups {
		for _, topic := range g.Topics {
			for _, p := range topic.Partitions {
				out[p.Partition] = max(p.Offset, 0)
			}
		}
	}
	return out
}

// publish writes messages as a relay does, with the broker's own deduplication off.
func (b *realBroker) publish(t *testing.T, msgs ...postrider.Message) {
	t.Helper()
	var sink broker.Sink
	if b.name == "nats" {
		s, err := natsbroker.Open(b.url+"?dedup=off", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		sink = s
	} else {
		s, err := kafkabroker.Open(b.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		sink = s
	}
	for from := 0; from < len(msgs); from += 100 {
		page := msgs[from:min(from+100, len(msgs))]
		var errs []error
		for range 20 { // a broker that has just come back may ask for patience
			if errs = sink.Deliver(t.Context(), broker.Batch{Messages: page}); errs == nil {
				break
			}
		}
		if errs != nil {
			t.Fatalf("publish: %v", errs)
		}
	}
}

// openSource returns a source for one process. A member of a Kafka group that
// died silently is missed after 6 s, the least that a broker accepts.
func openSource(name, url, topic, consumer string, kafka ...kgo.Opt) (broker.Source, func(), error) {
	if name == "nats" {
		nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
		if err != nil {
			return nil, nil, err
		}
		src, err := natsbroker.NewSource(nc, &natsbroker.SourceOptions{Stream: topic, Group: consumer, AckWait: 2 * time.Second})
		if err != nil {
			nc.Close()
			return nil, nil, err
		}
		return src, func() { src.Close(); nc.Close() }, nil
	}
	src, err := kafkabroker.NewSource(append([]kgo.Opt{
		kgo.SeedBrokers(url[len("kafka://"):]),
		kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(500 * time.Millisecond),
	}, kafka...), &kafkabroker.SourceOptions{
		Group: consumer, Topics: []string{topic},
	})
	if err != nil {
		return nil, nil, err
	}
	return src, src.Close, nil
}

// until polls for something that other processes bring about.
func until(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*limit) // a slow machine with others on it gets more
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", 3*limit, what)
		}
	}
}

// numbered are messages 0 to each-1 of every key, with ids of their own.
func numbered(topic string, keys, from, to int) (msgs []postrider.Message) {
	for n := from; n < to; n++ {
		for k := range keys {
			key := fmt.Sprint("k", k)
			m := postrider.JSON(topic, key, "order.placed", order{key, n})
			m.ID = fmt.Sprintf("01890a5d-ac96-774b-bcce-%06d%06d", k, n)
			msgs = append(msgs, m)
		}
	}
	return msgs
}
