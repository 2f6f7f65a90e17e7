package chaos

import (
	"context"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

// server is a real broker that a test may break.
type server struct {
	kill, stop, restart, freeze, thaw func() error
	// sink of a client of its own; nobody must be there yet.
	sink func(t *testing.T) broker.Sink
	// make makes an empty topic whose messages may have at most so many bytes.
	make func(t *testing.T, topic string, maxBytes int)
	// read returns the topic's payloads, those of one key in the broker's order.
	read func(t *testing.T, topic string) []string
	// remove deletes a topic; full makes it take no more and refuse makes it
	// reject everything, until the returned function is called. Both are nil where
	// the broker knows no such thing.
	remove       func(t *testing.T, topic string)
	full, refuse func(t *testing.T, topic string) (undo func())
	// through is a sink whose connections a proxy can break.
	through func(t *testing.T) (broker.Sink, *faultproxy.Proxy)
	tooBig  string // the code of what is refused
	slow    bool   // starts and forgets slowly
	kills   int    // as many as its restarts take a few seconds
}

// do fails the test when an act upon a server does not succeed.
func do(tb testing.TB, act func() error) {
	tb.Helper()
	if err := act(); err != nil {
		tb.Fatal(err)
	}
}

func startNATS(t *testing.T) *server {
	t.Helper()
	return natsServer(testserver.StartNATS(t))
}

func natsServer(s *testserver.NATS) *server {
	js := func(t *testing.T) jetstream.JetStream { return jetStream(t, s.URL) }
	return &server{
		kill: s.Kill, stop: s.Stop, restart: s.Restart, freeze: s.Freeze, thaw: s.Thaw, tooBig: "10054", kills: 3,
		sink: func(t *testing.T) broker.Sink { return natsSink(t, s.URL) },
		make: func(t *testing.T, topic string, maxBytes int) {
			if _, err := js(t).CreateStream(t.Context(), jetstream.StreamConfig{
				Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage, MaxMsgSize: int32(maxBytes),
			}); err != nil {
				t.Fatal(err)
			}
		},
		read: func(t *testing.T, topic string) []string { return readNATS(t, js(t), topic) },
		remove: func(t *testing.T, topic string) {
			if err := js(t).DeleteStream(t.Context(), topic); err != nil {
				t.Fatal(err)
			}
		},
		full: func(t *testing.T, topic string) func() {
			return change(t, js(t), topic, func(c *jetstream.StreamConfig, held int64) { c.MaxMsgs, c.Discard = held+50, jetstream.DiscardNew })
		},
		refuse: func(t *testing.T, topic string) func() {
			return change(t, js(t), topic, func(c *jetstream.StreamConfig, _ int64) { c.MaxMsgSize = 1 })
		},
		through: func(t *testing.T) (broker.Sink, *faultproxy.Proxy) {
			p := proxied(t, strings.TrimPrefix(s.URL, "nats://"))
			return natsSink(t, "nats://"+p.Addr()), p
		},
	}
}

func jetStream(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
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

// lastArrival is when the stream stored its newest message. It drops duplicates.
func lastArrival(t *testing.T, url, stream string) time.Time {
	t.Helper()
	s, err := jetStream(t, url).Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.LastTime
}

// change changes a stream's configuration until undo is called.
func change(t *testing.T, js jetstream.JetStream, name string, fn func(c *jetstream.StreamConfig, held int64)) (undo func()) {
	t.Helper()
	s, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	was := s.CachedInfo().Config
	set := func(c jetstream.StreamConfig) {
		if _, err := js.UpdateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	changed := was
	fn(&changed, int64(s.CachedInfo().State.Msgs))
	set(changed)
	return func() { set(was) }
}

func proxied(t *testing.T, addr string) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// natsSink has the broker's deduplication off: what is sent twice counts twice.
func natsSink(tb testing.TB, url string) broker.Sink {
	tb.Helper()
	sink, err := natsbroker.Open(url+"?dedup=off", nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(sink.Close)
	return sink
}

func readNATS(t *testing.T, js jetstream.JetStream, topic string) (arrived []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := js.Stream(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	last := stream.CachedInfo().State.LastSeq
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	it, err := consumer.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer it.Stop()
	for at := uint64(0); at < last; {
		m, err := it.Next(jetstream.NextContext(ctx))
		if err != nil {
			t.Fatalf("read %d of %d: %v", at, last, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		at = meta.Sequence.Stream
		arrived = append(arrived, string(m.Data()))
	}
	return arrived
}

const partitions = 4

func startKafka(t *testing.T) *server {
	t.Helper()
	return kafkaServer(testserver.StartKafka(t))
}

func kafkaServer(k *testserver.Kafka) *server {
	client := func(t *testing.T, opts ...kgo.Opt) *kgo.Client {
		c, err := kgo.NewClient(append(opts, kgo.SeedBrokers(k.Addr), kgo.FetchMaxWait(50*time.Millisecond))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	return &server{
		kill: k.Kill, stop: k.Stop, restart: k.Restart, freeze: k.Freeze, thaw: k.Thaw, tooBig: "MESSAGE_TOO_LARGE", kills: 1, slow: true,
		sink: func(t *testing.T) broker.Sink {
			sink, err := kafkabroker.Open("kafka://"+k.Addr, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(sink.Close)
			return sink
		},
		make: func(t *testing.T, topic string, maxBytes int) { makeTopic(t, client(t), topic, maxBytes) },
		read: func(t *testing.T, topic string) []string {
			return readKafka(t, topic, client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())))
		},
		remove: func(t *testing.T, topic string) { removeTopic(t, client(t), topic) },
		refuse: func(t *testing.T, topic string) func() {
			c := client(t)
			limitTopic(t, c, topic, "1")
			return func() { limitTopic(t, c, topic, "20000") }
		},
		through: func(t *testing.T) (broker.Sink, *faultproxy.Proxy) {
			p := proxied(t, k.Addr)
			c := client(t, kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) { // whatever the broker advertises
				return new(net.Dialer).DialContext(ctx, network, p.Addr())
			}))
			sink, err := kafkabroker.NewSink(c, nil)
			if err != nil {
				t.Fatal(err)
			}
			return sink, p
		},
	}
}

// removeTopic returns when the broker no longer knows the topic.
func removeTopic(t *testing.T, c *kgo.Client, topic string) {
	t.Helper()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis, req.TopicNames = 10_000, []string{topic}
	rt := kmsg.NewDeleteTopicsRequestTopic()
	rt.Topic = &topic
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(t.Context(), c)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("delete topic: %v", err)
	}
}

func limitTopic(t *testing.T, c *kgo.Client, topic, limit string) {
	t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	cfg := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	cfg.Name, cfg.Value = "max.message.bytes", &limit
	res.Configs = append(res.Configs, cfg)
	req.Resources = append(req.Resources, res)
	resp, err := req.RequestWith(t.Context(), c)
	if err == nil {
		err = kerr.ErrorForCode(resp.Resources[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("limit topic: %v", err)
	}
}

func makeTopic(t *testing.T, c *kgo.Client, topic string, maxBytes int) {
	t.Helper()
	limit := strconv.Itoa(maxBytes)
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 10_000
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = topic, partitions, 1
	rc := kmsg.NewCreateTopicsRequestTopicConfig()
	rc.Name, rc.Value = "max.message.bytes", &limit
	rt.Configs = append(rt.Configs, rc)
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(t.Context(), c)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("create topic: %v", err)
	}
}

// readKafka reads to the ends that the partitions have now.
func readKafka(t *testing.T, topic string, c *kgo.Client) (arrived []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	for p := range int32(partitions) {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = p, -1 // the end
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	left := int64(0)
	for _, shard := range c.RequestSharded(ctx, req) {
		if shard.Err != nil {
			t.Fatalf("ask for the ends: %v", shard.Err)
		}
		for _, p := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics[0].Partitions {
			left += p.Offset
		}
	}
	for left > 0 {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d records did not come", left)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			left-- // an idempotent producer without transactions leaves no gaps
			arrived = append(arrived, string(rec.Value))
		})
	}
	return arrived
}
