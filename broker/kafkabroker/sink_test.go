package kafkabroker_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/testserver"
)

// fake starts an in-process cluster with one topic, "orders".
func fake(tb testing.TB, partitions int32) *kfake.Cluster {
	tb.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, "orders"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

func sinkOn(tb testing.TB, addrs []string, timeout time.Duration, opts ...kgo.Opt) *kafkabroker.Sink {
	tb.Helper()
	_, s := clientAndSink(tb, addrs, timeout, opts...)
	return s
}

func clientAndSink(tb testing.TB, addrs []string, timeout time.Duration, opts ...kgo.Opt) (*kgo.Client, *kafkabroker.Sink) {
	tb.Helper()
	client, err := kgo.NewClient(append(append(kafkabroker.ClientOptions(), kgo.SeedBrokers(addrs...)), opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	s, err := kafkabroker.NewSink(client, &kafkabroker.SinkOptions{Timeout: timeout})
	if err != nil {
		tb.Fatal(err)
	}
	return client, s
}

func message(n int, key string) postrider.Message {
	return postrider.Message{
		ID:    fmt.Sprintf("01890a5d-ac96-774b-bcce-%012d", n),
		Topic: "orders", Key: key, Type: "t", Payload: []byte(fmt.Sprint(n)), Version: int64(n + 1),
	}
}

// read returns the first n records of a topic, per partition in log order.
func read(tb testing.TB, addrs []string, topic string, n int) []*kgo.Record {
	tb.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		tb.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all []*kgo.Record
	for len(all) < n {
		fs := client.PollFetches(ctx)
		if ctx.Err() != nil {
			tb.Fatalf("%d of %d records arrived", len(all), n)
		}
		all = append(all, fs.Records()...)
	}
	return all
}

func TestDeliverManyCalls(t *testing.T) {
	c := fake(t, 8)
	s := sinkOn(t, c.ListenAddrs(), 0)
	const lanes, calls, size = 16, 10, 200
	var wg sync.WaitGroup
	for lane := range lanes {
		wg.Go(func() {
			n := 0
			for range calls {
				var msgs []postrider.Message
				for range size {
					msgs = append(msgs, message(n, fmt.Sprintf("%d-%d", lane, n%7)))
					n++
				}
				if errs := s.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
					t.Errorf("lane %d: %v", lane, errs[0])
				}
			}
		})
	}
	wg.Wait()
	last := map[string]int64{}
	for _, r := range read(t, c.ListenAddrs(), "orders", lanes*calls*size) {
		m, err := envelope.Codec{}.Decode(envelope.Record{Topic: r.Topic, Key: string(r.Key), Headers: headers(r), Payload: r.Value})
		if err != nil {
			t.Fatal(err)
		}
		if m.Version <= last[m.Key] {
			t.Fatalf("key %s: version %d after %d", m.Key, m.Version, last[m.Key])
		}
		last[m.Key] = m.Version
	}
}

func headers(r *kgo.Record) []envelope.Header {
	var hs []envelope.Header
	for _, h := range r.Headers {
		hs = append(hs, envelope.Header{Name: h.Key, Value: h.Value})
	}
	return hs
}

// classes returns the classes of the answers, for comparison.
func classes(errs []error, n int) string {
	var b strings.Builder
	for i := range n {
		if errs == nil || errs[i] == nil {
			b.WriteByte('.')
		} else {
			b.WriteByte(broker.Classify(errs[i]).Class.String()[0])
		}
	}
	return b.String()
}

// TestRefusedBatch lets the broker refuse every batch that holds message 3: it
// alone is rejected, its key's later messages are not tried, all others arrive.
func TestRefusedBatch(t *testing.T) {
	c := fake(t, 1)
	s := sinkOn(t, c.ListenAddrs(), 0)
	c.ControlKey(0, func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		pr := req.(*kmsg.ProduceRequest)
		if !strings.Contains(string(pr.Topics[0].Partitions[0].Records), "poison") {
			return nil, nil, false
		}
		return refuse(pr, kerr.InvalidRecord.Code), nil, true
	})
	var msgs []postrider.Message
	for n := range 40 {
		msgs = append(msgs, message(n, fmt.Sprint(n%5)))
	}
	msgs[3].Payload = []byte("poison")
	want := "...r....f....f....f....f....f....f....f."
	if got := classes(s.Deliver(t.Context(), broker.Batch{Messages: msgs}), len(msgs)); got != want {
		t.Errorf("classes\ngot  %s\nwant %s", got, want)
	}
	for _, r := range read(t, c.ListenAddrs(), "orders", 32) {
		if string(r.Key) == "3" {
			t.Errorf("a message of the rejected one's key was accepted: %s", r.Value)
		}
	}
}

func refuse(pr *kmsg.ProduceRequest, code int16) *kmsg.ProduceResponse {
	resp := pr.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range pr.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, code
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// TestPrefixUnderFailure fails the n-th produce request of one call that needs
// many batches: no message behind the failed batch may ever be accepted.
//
// Promises: O
func TestPrefixUnderFailure(t *testing.T) {
	for _, code := range []*kerr.Error{kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed} {
		for nth := 1; nth <= 4; nth++ {
			t.Run(fmt.Sprintf("%s/%d", code.Message, nth), func(t *testing.T) {
				c := fake(t, 1)
				s := sinkOn(t, c.ListenAddrs(), 0, kgo.ProducerBatchMaxBytes(4096))
				seen := 0
				c.ControlKey(0, func(req kmsg.Request) (kmsg.Response, error, bool) {
					c.KeepControl()
					if seen++; seen == nth {
						return refuse(req.(*kmsg.ProduceRequest), code.Code), nil, true
					}
					return nil, nil, false
				})
				var msgs []postrider.Message
				for n := range 200 {
					msgs = append(msgs, message(n, "k"))
				}
				got := classes(s.Deliver(t.Context(), broker.Batch{Messages: msgs}), len(msgs))
				head := strings.Count(got, ".")
				if want := strings.Repeat(".", head) + strings.Repeat("o", len(msgs)-head); got != want {
					t.Fatalf("classes %s", got)
				}
				// The next call's message comes right behind the accepted head.
				if errs := s.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(head, "k")}}); errs != nil {
					t.Fatal(errs[0])
				}
				for i, r := range read(t, c.ListenAddrs(), "orders", head+1) {
					if string(r.Value) != fmt.Sprint(i) {
						t.Fatalf("record %d is message %s", i, r.Value)
					}
				}
			})
		}
	}
}

// TestRetriedAnswers: after errors that make the sink send the same batch again, and
// after a forgotten producer, the log has every message once and in order.
func TestRetriedAnswers(t *testing.T) {
	for _, e := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, kerr.RequestTimedOut, kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID} {
		t.Run(e.Message, func(t *testing.T) {
			c := fake(t, 1)
			s := sinkOn(t, c.ListenAddrs(), 0, kgo.ProducerBatchMaxBytes(4096))
			seen := 0
			c.ControlKey(0, func(req kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				if seen++; seen == 1 || seen == 3 {
					return refuse(req.(*kmsg.ProduceRequest), e.Code), nil, true
				}
				return nil, nil, false
			})
			var msgs []postrider.Message
			for n := range 200 {
				msgs = append(msgs, message(n, "k"))
			}
			if errs := s.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
				t.Fatal(classes(errs, len(msgs)), errs[len(errs)-1])
			}
			for i, r := range read(t, c.ListenAddrs(), "orders", len(msgs)) {
				if string(r.Value) != fmt.Sprint(i) {
					t.Fatalf("record %d is message %s", i, r.Value)
				}
			}
		})
	}
}

// TestShortOfReplicas: too few replicas in sync are an outage of that
// topic, however the call ends. They never count as attempts of the messages, even while
// other topics work.
func TestShortOfReplicas(t *testing.T) {
	for _, e := range []*kerr.Error{kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend} {
		for name, timeout := range map[string]time.Duration{"the call ends": time.Minute, "the sink gives up": 300 * time.Millisecond} {
			t.Run(e.Message+", "+name, func(t *testing.T) {
				c := fake(t, 1)
				s := sinkOn(t, c.ListenAddrs(), timeout)
				c.ControlKey(0, func(req kmsg.Request) (kmsg.Response, error, bool) {
					c.KeepControl()
					return refuse(req.(*kmsg.ProduceRequest), e.Code), nil, true
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				errs := s.Deliver(ctx, broker.Batch{Messages: []postrider.Message{message(0, "k"), message(1, "k")}})
				if got := classes(errs, 2); got != "oo" {
					t.Fatalf("classes %s: %v", got, errs)
				}
				if at := broker.Classify(errs[0]).Destination; at != "orders" {
					t.Errorf("an outage at %q", at)
				}
			})
		}
	}
}

func TestMissingTopicAndTooLarge(t *testing.T) {
	c := fake(t, 2)
	s := sinkOn(t, c.ListenAddrs(), 0)
	missing, large, fine, bad := message(0, "a"), message(1, "b"), message(2, "c"), message(3, "d")
	missing.Topic, bad.Topic = "nowhere", "not a topic"
	large.Payload = make([]byte, 2<<20)
	errs := s.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{missing, large, fine, bad}})
	if got := classes(errs, 4); got != "or.r" {
		t.Fatalf("classes %s: %v", got, errs)
	}
	e := broker.Classify(errs[0])
	if e.Destination != "nowhere" || e.Code != "UNKNOWN_TOPIC_OR_PARTITION" {
		t.Errorf("missing topic: %v", e)
	}
	if got := errs[1].Error(); !strings.Contains(got, "a record of 2097") || !strings.Contains(got, "the topic's max.message.bytes of 1048588; raise it with") {
		t.Errorf("a record above the topic's limit: %s", got)
	}
	errs = sinkOn(t, c.ListenAddrs(), 0, kgo.ProducerBatchMaxBytes(50_000)).Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{large}})
	if errs == nil || !strings.Contains(errs[0].Error(), "max-message-bytes in the URL) of 50000; raise that") {
		t.Errorf("a record above the client's limit: %v", errs)
	}
}

// TestProbe: Probe names missing topics, creates none, and fails without a broker.
func TestProbe(t *testing.T) {
	c := fake(t, 2)
	s := sinkOn(t, c.ListenAddrs(), 0)
	for range 2 { // the first look must not have made one
		missing, err := s.Probe(t.Context(), []string{"orders", "nowhere", "not a topic"})
		if err != nil || len(missing) != 3 || missing[0] != nil || missing[1] == nil || missing[2] == nil {
			t.Fatalf("%v, %v", missing, err)
		}
	}
	c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := s.Probe(ctx, []string{"orders"}); err == nil {
		t.Error("a broker that is gone answered")
	}
}

// TestUnreachableIsSaidSoon: refused connections are an outage long before a request's
// timeout.
func TestUnreachableIsSaidSoon(t *testing.T) {
	s := sinkOn(t, []string{"127.0.0.1:1"}, time.Minute)
	began := time.Now()
	errs := s.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(0, "a")}})
	if got := classes(errs, 1); got != "o" {
		t.Errorf("classes %s: %v", got, errs)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("said after %v", took)
	}
}

func TestNewSinkRefuses(t *testing.T) {
	for name, opts := range map[string][]kgo.Opt{
		"RequiredAcks":                       {kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()},
		"DisableIdempotentWrite":             {kgo.DisableIdempotentWrite()},
		"AllowIdempotentProduceCancellation": {kgo.AllowIdempotentProduceCancellation()},
		"RecordPartitioner":                  {kgo.RecordPartitioner(kgo.RoundRobinPartitioner())},
		"TransactionalID":                    {kgo.TransactionalID("x")},
	} {
		client, err := kgo.NewClient(opts...)
		if err != nil {
			t.Fatal(name, err)
		}
		if _, err := kafkabroker.NewSink(client, nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
		client.Close()
	}
	client, err := kgo.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kafkabroker.NewSink(client, nil); err != nil {
		t.Errorf("a client with franz-go's defaults is refused: %v", err)
	}
}

func TestOpenURL(t *testing.T) {
	for raw, want := range map[string]string{
		"http://x": "kafka://", "kafka://": "a host is missing", "kafka://u@h:1": "sasl needs a user and a password",
		"kafka://h?sasl=plain": "sasl needs a user", "kafka://u:secret@h?sasl=secret": "unknown sasl mechanism",
		"kafka://h?max-message-bytes=1": "from 1024 to", "kafka://u:secret@h?tls=yes": "tls must be",
		"kafka://h/?compression=rar": "compression", "kafka://h?x=1": `"x" is unknown`,
	} {
		_, err := kafkabroker.Open(raw, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error %v", raw, err)
		}
	}
	routed := func(m *postrider.Message) (envelope.Route, error) {
		return envelope.Route{Topic: "routed", Key: m.Key}, nil
	}
	sink, err := kafkabroker.Open("kafka://h1:1,h2:2/?prefix=p.&compression=lz4", &kafkabroker.SinkOptions{Prefix: "mine.", Route: routed})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	if p, err := sink.Preview("", &postrider.Message{ID: "1", Topic: "orders"}); err != nil || p.Destination != "p.routed" {
		t.Errorf("the URL's prefix and the options' route make %q, %v", p.Destination, err)
	}
}

// TestAdvice: advice about a topic of a real broker.
func TestAdvice(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	topic := "advice" + rand.Text()
	create(t, addr, topic, 1)
	advice, err := sinkOn(t, []string{addr}, 0).Advise(t.Context(), []string{topic, "nowhere", "no name"})
	if err != nil || len(advice) != 1 || advice[0].Topic != topic || !strings.Contains(advice[0].What, "one replica") {
		t.Errorf("%+v, %v", advice, err)
	}
}
