package kafkabroker_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"slices"
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
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

// appended lets the cluster append a produce request that the caller then answers
// with an error.
func appended(t *testing.T, c *kfake.Cluster, direct *kgo.Client, pr *kmsg.ProduceRequest) {
	t.Helper()
	var err error
	c.SleepControl(func() { // direct's own request passes meanwhile
		copied := *pr
		_, err = direct.Broker(0).Request(context.Background(), &copied)
	})
	if err != nil {
		t.Error(err)
	}
}

func direct(t *testing.T, addrs ...string) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.ClientID("direct"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	return client
}

func some(from, n int, key string) []postrider.Message {
	var msgs []postrider.Message
	for i := range n {
		msgs = append(msgs, message(from+i, key))
	}
	return msgs
}

// values reads what the topic holds until n records are there.
func values(t *testing.T, addrs []string, topic string, n int) string {
	t.Helper()
	var all []string
	for _, r := range read(t, addrs, topic, n) {
		all = append(all, string(r.Value))
	}
	return strings.Join(all, " ")
}

// TestAppendedThoughRefused: the broker appends a batch and answers with an
// error. The next batch of the same length must not reuse its sequence numbers: the
// broker would take it for a duplicate and acknowledge it without storing it.
func TestAppendedThoughRefused(t *testing.T) {
	for name, answers := range map[string][]int16{
		"unknown server error":           {kerr.UnknownServerError.Code},
		"refused after a lost answer":    {kerr.RequestTimedOut.Code, kerr.MessageTooLarge.Code},
		"not allowed after lost answer":  {kerr.RequestTimedOut.Code, kerr.TopicAuthorizationFailed.Code},
		"not the leader after it was":    {kerr.NotLeaderForPartition.Code, kerr.TopicAuthorizationFailed.Code},
		"invalid record after a timeout": {kerr.RequestTimedOut.Code, kerr.InvalidRecord.Code},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake(t, 1)
			s, other := sinkOn(t, c.ListenAddrs(), 0), direct(t, c.ListenAddrs()...)
			n := 0
			c.ControlKey(0, func(req kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				pr := req.(*kmsg.ProduceRequest)
				if n >= len(answers) {
					return nil, nil, false
				}
				n++
				if n == 1 {
					again := answers
					answers = nil // pass the direct one
					appended(t, c, other, pr)
					answers = again
				}
				return refuse(pr, answers[n-1]), nil, true
			})
			if errs := s.Deliver(t.Context(), broker.Batch{Messages: some(0, 1, "a")}); errs == nil {
				t.Fatal("a refused message is acknowledged")
			}
			if errs := s.Deliver(t.Context(), broker.Batch{Messages: some(100, 1, "b")}); errs != nil {
				t.Fatal(errs)
			}
			if got := values(t, c.ListenAddrs(), "orders", 2); got != "0 100" {
				t.Errorf("the log holds %s", got)
			}
		})
	}
}

// TestWrongClock: a refused timestamp is the fault of this machine's clock, and no
// message is given up for it.
func TestWrongClock(t *testing.T) {
	c := fake(t, 1)
	s := sinkOn(t, c.ListenAddrs(), 0)
	c.ControlKey(0, func(req kmsg.Request) (kmsg.Response, error, bool) {
		return refuse(req.(*kmsg.ProduceRequest), kerr.InvalidTimestamp.Code), nil, true
	})
	errs := s.Deliver(t.Context(), broker.Batch{Messages: some(0, 3, "a")})
	if got := classes(errs, 3); got != "ooo" {
		t.Errorf("classes %s: %v", got, errs)
	}
}

// TestKeyOverTopics: a key's later message for another topic waits for the
// earlier one.
func TestKeyOverTopics(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "orders", "bills"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	s := sinkOn(t, c.ListenAddrs(), 0)
	c.ControlKey(0, func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		pr := req.(*kmsg.ProduceRequest)
		for _, rt := range pr.Topics {
			for _, rp := range rt.Partitions {
				if strings.Contains(string(rp.Records), "poison") {
					return refuse(pr, kerr.InvalidRecord.Code), nil, true
				}
			}
		}
		return nil, nil, false
	})
	msgs := append(some(0, 3, "a"), some(10, 3, "b")...)
	msgs[1].Payload, msgs[2].Topic, msgs[5].Topic = []byte("poison"), "bills", "bills"
	if got := classes(s.Deliver(t.Context(), broker.Batch{Messages: msgs}), 6); got != ".rf..." {
		t.Errorf("classes %s", got)
	}
	if got := values(t, c.ListenAddrs(), "bills", 1); got != "12" {
		t.Errorf("the other topic holds %s", got)
	}
}

// TestFrozenForMany: while a broker accepts connections and never answers, every call
// ends with its own context, also a call that waits for another call's request.
func TestFrozenForMany(t *testing.T) {
	proxy, err := faultproxy.New(testserver.SharedKafka(t).Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	s := sinkOn(t, []string{proxy.Addr()}, time.Minute, kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, proxy.Addr())
	}))
	proxy.Freeze()
	defer proxy.Restore()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	var wg sync.WaitGroup
	for n := range 64 {
		wg.Go(func() {
			if errs := s.Deliver(ctx, broker.Batch{Messages: some(n, 1, fmt.Sprint(n))}); errs == nil {
				t.Error("a frozen broker acknowledges")
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the calls took %v, their context 300ms", took)
	}
}

// TestTopicMadeAgain: a topic that was deleted and created again with fewer
// partitions accepts messages after at most one outage per key.
func TestTopicMadeAgain(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	topic := "again" + rand.Text()
	create(t, addr, topic, 8)
	s, admin := sinkOn(t, []string{addr}, 0), direct(t, addr)
	var msgs []postrider.Message
	for n := range 64 {
		m := message(n, fmt.Sprint(n))
		m.Topic = topic
		msgs = append(msgs, m)
	}
	if errs := s.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
	del := kmsg.NewPtrDeleteTopicsRequest()
	dt := kmsg.NewDeleteTopicsRequestTopic()
	dt.Topic, del.TopicNames, del.TimeoutMillis = kmsg.StringPtr(topic), []string{topic}, 10_000
	del.Topics = append(del.Topics, dt)
	if _, err := del.RequestWith(t.Context(), admin); err != nil {
		t.Fatal(err)
	}
	within(t, time.Minute, "the old topic is gone", func() bool { return !exists(t, admin, topic) })
	create(t, addr, topic, 2)
	within(t, time.Minute, "the new topic takes everything", func() bool {
		errs := s.Deliver(t.Context(), broker.Batch{Messages: msgs})
		for _, err := range errs {
			if err != nil && broker.Classify(err).Class == broker.ClassRejected {
				t.Fatal(err)
			}
		}
		return errs == nil
	})
	read(t, []string{addr}, topic, len(msgs))
}

func exists(t *testing.T, admin *kgo.Client, topic string) bool {
	t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = kmsg.StringPtr(topic)
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(t.Context(), admin)
	return err != nil || resp.Topics[0].ErrorCode == 0
}

func within(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// TestLimitChanges: lowering a topic's max.message.bytes while the sink runs makes
// batches smaller, raising it lets larger messages through.
func TestLimitChanges(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	topic := "limit" + rand.Text()
	create(t, addr, topic, 1)
	s, admin := sinkOn(t, []string{addr}, 0), direct(t, addr)
	deliver := func(size int) string {
		msgs := some(0, 20, "")
		for i := range msgs {
			msgs[i].Topic, msgs[i].Payload = topic, make([]byte, 5000)
		}
		msgs[7].Payload = make([]byte, size)
		errs := s.Deliver(t.Context(), broker.Batch{Messages: msgs})
		if errs != nil && errs[7] != nil && !strings.Contains(errs[7].Error(), "a record of 400") {
			t.Errorf("the size is not said: %v", errs[7])
		}
		return classes(errs, len(msgs))
	}
	fine, refused := strings.Repeat(".", 20), strings.Repeat(".", 7)+"r"+strings.Repeat(".", 12)
	for _, step := range []struct {
		limit, size int
		want        string
	}{{30_000, 400_000, refused}, {1 << 20, 400_000, fine}, {30_000, 400_000, refused}, {30_000, 20_000, fine}, {1 << 20, 400_000, fine}} {
		setLimit(t, admin, topic, step.limit)
		what := fmt.Sprintf("with limit %d a message of %d bytes is answered %s", step.limit, step.size, step.want)
		within(t, 10*time.Second, what, func() bool { return deliver(step.size) == step.want }) // logs learn it a moment later
	}
}

// TestARaisedLimitIsNoticedWithinTenSeconds: batches stay small no longer than that where
// a topic's limit was below what the sink makes.
func TestARaisedLimitIsNoticedWithinTenSeconds(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	topic := "raised" + rand.Text()
	create(t, addr, topic, 1)
	s, admin := sinkOn(t, []string{addr}, 0), direct(t, addr)
	deliver := func() {
		t.Helper()
		msgs := some(0, 1, "")
		msgs[0].Topic = topic
		if errs := s.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
			t.Fatal(errs)
		}
	}
	setLimit(t, admin, topic, 30_000)
	deliver()
	if n := s.MaxBatch(topic); n != 30_000 {
		t.Fatalf("the sink makes batches of %d bytes", n)
	}
	setLimit(t, admin, topic, 900_000)
	s.Age(topic, 11*time.Second)
	deliver()
	within(t, 30*time.Second, "batches are as large as the new limit", func() bool { return s.MaxBatch(topic) == 900_000 })
}

func setLimit(t *testing.T, admin *kgo.Client, topic string, limit int) {
	t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	cfg := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	cfg.Name, cfg.Value = "max.message.bytes", kmsg.StringPtr(fmt.Sprint(limit))
	res.Configs = []kmsg.IncrementalAlterConfigsRequestResourceConfig{cfg}
	req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{res}
	if _, err := req.RequestWith(t.Context(), admin); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the limit is known", func() bool {
		d := kmsg.NewPtrDescribeConfigsRequest()
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType, r.ResourceName, r.ConfigNames = kmsg.ConfigResourceTypeTopic, topic, []string{"max.message.bytes"}
		d.Resources = append(d.Resources, r)
		resp, err := d.RequestWith(t.Context(), admin)
		return err == nil && len(resp.Resources) == 1 && len(resp.Resources[0].Configs) == 1 &&
			*resp.Resources[0].Configs[0].Value == fmt.Sprint(limit)
	})
}

// TestPartitionsGrow: every message goes through, and a key moves to another
// partition once, when the sink learns that there are more.
func TestPartitionsGrow(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	topic := "grow" + rand.Text()
	create(t, addr, topic, 4)
	s, admin := sinkOn(t, []string{addr}, 0), direct(t, addr)
	const keys, rounds = 40, 6
	round := func(n int) {
		t.Helper()
		var msgs []postrider.Message
		for k := range keys {
			m := message(n*keys+k, fmt.Sprint(k))
			m.Topic, m.Version = topic, int64(n+1)
			msgs = append(msgs, m)
		}
		if errs := s.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
			t.Fatal(errs)
		}
	}
	round(0)
	round(1)
	req := kmsg.NewPtrCreatePartitionsRequest()
	rt := kmsg.NewCreatePartitionsRequestTopic()
	rt.Topic, rt.Count = topic, 9
	req.Topics, req.TimeoutMillis = append(req.Topics, rt), 10_000
	if _, err := req.RequestWith(t.Context(), admin); err != nil {
		t.Fatal(err)
	}
	if err := known(t.Context(), admin, topic, 9); err != nil {
		t.Fatal(err)
	}
	round(2) // it does not know yet
	s.Outdate(topic)
	round(3)
	within(t, 10*time.Second, "the sink knows of 9 partitions", func() bool { return s.Partitions(topic) == 9 })
	round(4)
	round(5)
	last, moves := map[string]int64{}, map[string]int{}
	at := map[string]int32{}
	records := read(t, []string{addr}, topic, keys*rounds)
	slices.SortStableFunc(records, func(a, b *kgo.Record) int { return a.Timestamp.Compare(b.Timestamp) })
	for _, r := range records {
		key := string(r.Key)
		if p, ok := at[key]; ok && p != r.Partition {
			moves[key]++
		}
		at[key] = r.Partition
		last[key]++
	}
	for key, n := range last {
		if n != rounds || moves[key] > 1 {
			t.Errorf("key %s: %d messages of %d, %d moves", key, n, rounds, moves[key])
		}
	}
	if len(moves) == 0 {
		t.Error("no key has moved to a new partition")
	}
}
