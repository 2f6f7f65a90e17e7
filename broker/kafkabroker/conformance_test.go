package kafkabroker_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

// TestConformance runs the suite on the broker itself; on machines without it, and
// in the matrix, on the client library's fake.
//
// Promises: L, O
func TestConformance(t *testing.T) {
	t.Run("broker", func(t *testing.T) {
		addr := testserver.SharedKafka(t).Addr
		brokertest.Run(t, func(t *testing.T) *brokertest.Env { return env(t, addr) })
	})
	if _, err := testserver.KafkaLibs(); err == nil && os.Getenv("POSTRIDER_MATRIX") != "1" {
		return
	}
	t.Run("fake", func(t *testing.T) {
		c := fake(t, 1)
		brokertest.Run(t, func(t *testing.T) *brokertest.Env {
			e := env(t, c.ListenAddrs()[0])
			e.Server = "Kafka, the client's fake"
			return e
		})
	})
}

// TestDeclaredLimit: Info declares a limit of the URL, and larger messages are rejected before they are sent.
func TestDeclaredLimit(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	brokertest.RunSome(t, []string{"sink/declared", "sink/limit"}, func(t *testing.T) *brokertest.Env {
		e := env(t, addr)
		e.Server += ", max-message-bytes"
		e.Sink, e.TooLarge, e.Largest = sinkOn(t, []string{addr}, 0, kgo.ProducerBatchMaxBytes(200_000)), 400_000, 199_000
		delete(e.Without, "sink/declared")
		return e
	})
}

// env gives a case a topic of its own. The sink connects through a proxy, whatever
// address the broker advertises.
func env(t *testing.T, addr string) *brokertest.Env {
	t.Helper()
	topic := "t" + rand.Text()
	create(t, addr, topic, 4)
	proxy, through := proxied(t, addr)
	client, sink := clientAndSink(t, []string{addr}, 2*time.Second, through)
	source := func(more ...kgo.Opt) (*kafkabroker.Source, error) {
		return kafkabroker.NewSource(append([]kgo.Opt{kgo.SeedBrokers(addr), kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(time.Second)}, more...), &kafkabroker.SourceOptions{
			Group: "g" + topic, Topics: []string{topic},
		})
	}
	return &brokertest.Env{
		Server: "Kafka " + testserver.KafkaVersion,
		Sink:   sink, Topic: topic, Missing: "nowhere" + topic, TooLarge: 2 << 20, Largest: 1_048_588 - 300,
		Log: func(ctx context.Context) ([]postrider.Message, error) { return log(ctx, addr, topic) },
		LogOf: func(ctx context.Context, topic string) ([]postrider.Message, error) {
			return log(ctx, addr, topic)
		},
		Operator: operator(t, addr),
		Routed: func(_ context.Context, route envelope.Router) (broker.Sink, error) {
			client, err := kgo.NewClient(append(kafkabroker.ClientOptions(), kgo.SeedBrokers(addr))...)
			if err != nil {
				return nil, err
			}
			t.Cleanup(client.Close)
			return kafkabroker.NewSink(client, &kafkabroker.SinkOptions{Route: route})
		},
		Flaky: func(context.Context) (broker.Source, brokertest.Faults, func(), error) {
			proxy, through := proxied(t, addr)
			s, err := source(through)
			if err != nil {
				return nil, nil, nil, err
			}
			return s, proxy, s.Close, nil
		},
		Foreign: func(ctx context.Context, payload []byte) error {
			c, err := kgo.NewClient(kgo.SeedBrokers(addr))
			if err != nil {
				return err
			}
			defer c.Close()
			return c.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: payload}).FirstErr()
		},
		Faults: proxy, Second: sinkOn(t, []string{addr}, 2*time.Second), Stop: client.Close,
		Source: func(context.Context) (broker.Source, func(), error) {
			s, err := source()
			if err != nil {
				return nil, nil, err
			}
			return s, s.Close, nil
		},
		Mortal: func(context.Context) (broker.Source, func(), error) {
			proxy, through := proxied(t, addr)
			s, err := source(through)
			if err != nil {
				return nil, nil, err
			}
			t.Cleanup(s.Close)
			return s, func() { proxy.Cut(0) }, nil
		},
		Shared: true,
		Without: map[string]string{
			"sink/declared": "without max-message-bytes the topic's limit decides: TestDeclaredLimit has one",
			"sink/dedup":    "idempotence is of a producer's batches, not of ids: a topic keeps what is sent again",
			"sink/full":     "a topic has no size at which it refuses: it drops its oldest segments",
			"sink/revoked":  "rights need a broker with users: TestWhoWeAre has one",
			"source/extend": "a record has no time limit, only its member has one",
		},
	}
}

func operator(t *testing.T, addr string) brokertest.Operator {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	fresh := func() string { return "o" + rand.Text() }
	return brokertest.Operator{
		Make: func(ctx context.Context) (string, error) {
			topic := fresh()
			return topic, createOn(ctx, client, topic, 4, nil)
		},
		MakeSmall: func(ctx context.Context) (string, int, error) {
			topic, limit := fresh(), 64<<10 // of a batch
			return topic, limit, createOn(ctx, client, topic, 4, map[string]string{"max.message.bytes": strconv.Itoa(limit)})
		},
		Delete: func(ctx context.Context, topic string) error { return deleteOn(ctx, client, topic) },
		Again:  func(ctx context.Context, topic string) error { return createOn(ctx, client, topic, 4, nil) },
	}
}

// proxied returns a proxy and the option that sends a client through it.
func proxied(t *testing.T, addr string) (*faultproxy.Proxy, kgo.Opt) {
	t.Helper()
	proxy, err := faultproxy.New(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	return proxy, kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, proxy.Addr())
	})
}

func create(tb testing.TB, addr, topic string, partitions int32) {
	tb.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		tb.Fatal(err)
	}
	defer client.Close()
	if err := createOn(context.Background(), client, topic, partitions, nil); err != nil {
		tb.Fatal(err)
	}
}

// createOn creates a topic and waits until the broker itself has it from its
// controller.
func createOn(ctx context.Context, client *kgo.Client, topic string, partitions int32, config map[string]string) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = topic, partitions, 1
	for name, value := range config {
		rc := kmsg.NewCreateTopicsRequestTopicConfig()
		rc.Name, rc.Value = name, &value
		rt.Configs = append(rt.Configs, rc)
	}
	req.Topics, req.TimeoutMillis = append(req.Topics, rt), 10_000
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil {
		return fmt.Errorf("create %s: %w", topic, err)
	}
	return known(ctx, client, topic, int(partitions))
}

func deleteOn(ctx context.Context, client *kgo.Client, topic string) error {
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis, req.TopicNames = 10_000, []string{topic}
	rt := kmsg.NewDeleteTopicsRequestTopic()
	rt.Topic = &topic
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil {
		return fmt.Errorf("delete %s: %w", topic, err)
	}
	return known(ctx, client, topic, 0)
}

// known waits until the broker reports this number of partitions for a topic.
func known(ctx context.Context, client *kgo.Client, topic string, partitions int) error {
	req := kmsg.NewPtrMetadataRequest()
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = kmsg.StringPtr(topic)
	req.Topics = append(req.Topics, rt)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		resp, err := req.RequestWith(ctx, client)
		if err == nil && len(resp.Topics[0].Partitions) == partitions && (resp.Topics[0].ErrorCode == 0) == (partitions > 0) {
			return nil
		}
	}
	return fmt.Errorf("topic %s does not come to have %d partitions", topic, partitions)
}

// log reads the topic up to its present end.
func log(ctx context.Context, addr, topic string) ([]postrider.Message, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(50*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	end, err := ends(ctx, client, topic)
	if err != nil {
		return nil, err
	}
	var out []postrider.Message
	for n := int64(0); n < end; {
		fs := client.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			return nil, err
		}
		for _, r := range fs.Records() {
			m, err := envelope.Codec{}.Decode(envelope.Record{Topic: r.Topic, Key: string(r.Key), Headers: headers(r), Payload: r.Value})
			if err != nil {
				return nil, err
			}
			out = append(out, m)
			n++
		}
	}
	return out, nil
}

// ends returns the sum of the partitions' end offsets.
func ends(ctx context.Context, client *kgo.Client, topic string) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	for p := range int32(4) {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = p, -1
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			sum += p.Offset
		}
	}
	return sum, nil
}
