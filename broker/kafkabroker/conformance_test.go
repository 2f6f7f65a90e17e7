package kafkabroker_test

import (
	"context"
	"crypto/rand"
	"net"
	"testing"
	"time"

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

func TestRealBroker(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	brokertest.Run(t, func(t *testing.T) *brokertest.Env { return env(t, addr) })
}

func TestFakeBroker(t *testing.T) {
	c := fake(t, 1)
	brokertest.Run(t, func(t *testing.T) *brokertest.Env { return env(t, c.ListenAddrs()[0]) })
}

// env gives a case a topic of its own; the sink goes through a proxy, whatever
// address the broker advertises.
func env(t *testing.T, addr string) *brokertest.Env {
	t.Helper()
	topic := "t" + rand.Text()
	create(t, addr, topic, 4)
	proxy, through := proxied(t, addr)
	client, sink := clientAndSink(t, []string{addr}, 2*time.Second, through)
	source := func(more ...kgo.Opt) (*kafkabroker.Source, error) {
		return kafkabroker.NewSource(kafkabroker.SourceOptions{
			Group: "g" + topic, Topics: []string{topic},
			Client: append([]kgo.Opt{kgo.SeedBrokers(addr), kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(time.Second)}, more...),
		})
	}
	return &brokertest.Env{
		Sink: sink, Topic: topic, Missing: "nowhere" + topic, TooLarge: 2 << 20, Largest: 1_000_012 - 300,
		Log:    func(ctx context.Context) ([]postrider.Message, error) { return log(ctx, addr, topic) },
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
	req := kmsg.NewPtrCreateTopicsRequest()
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = topic, partitions, 1
	req.Topics, req.TimeoutMillis = append(req.Topics, rt), 10_000
	resp, err := req.RequestWith(context.Background(), client)
	if err != nil {
		tb.Fatal(err)
	}
	if resp.Topics[0].ErrorCode != 0 {
		tb.Fatalf("create %s: code %d", topic, resp.Topics[0].ErrorCode)
	}
	known(tb, client, topic, partitions)
}

// known waits until the broker itself knows what its controller has made.
func known(tb testing.TB, client *kgo.Client, topic string, partitions int32) {
	tb.Helper()
	req := kmsg.NewPtrMetadataRequest()
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = kmsg.StringPtr(topic)
	req.Topics = append(req.Topics, rt)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		resp, err := req.RequestWith(context.Background(), client)
		if err == nil && resp.Topics[0].ErrorCode == 0 && len(resp.Topics[0].Partitions) == int(partitions) {
			return
		}
	}
	tb.Fatalf("topic %s does not appear", topic)
}

// log reads the topic up to its end as it is now.
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

// ends is the sum of the partitions' end offsets.
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
